#include <charconv>
#include <cstring>

#include "graph/error.h"
#include "graph/eval.h"
#include "graph/op_schema.h"
#include "graph/text.h"
#include "graph/text_syntax.h"

namespace weir {
namespace {

struct Token {
  enum class Kind { kWord, kString, kMark, kEnd } kind = Kind::kEnd;
  std::string text;
  int line = 1, column = 1;
};

class Lexer {
 public:
  explicit Lexer(const std::string& text) : text_(text) {}

  std::vector<Token> Run() {
    std::vector<Token> tokens;
    do {
      SkipBlank();
      tokens.push_back(Next());
    } while (tokens.back().kind != Token::Kind::kEnd);
    return tokens;
  }

 private:
  static bool IsWord(char c) { return IsNameCharacter(c) || c == '*' || c == '?' || c == '+'; }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  char Take() {
    const char c = text_[at_++];
    if (c == '\n') ++line_, column_ = 0;
    ++column_;
    return c;
  }
  void SkipBlank() {
    while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(Peek())) || Peek() == '#')) {
      if (Peek() == '#') {
        while (at_ < text_.size() && Peek() != '\n') Take();
      } else {
        Take();
      }
    }
  }
  Token Next() {
    Token token{.text = {}, .line = line_, .column = column_};
    if (at_ >= text_.size()) return token;
    if (Peek() == '"') {
      token.kind = Token::Kind::kString;
      Take();
      while (at_ < text_.size() && Peek() != '"') {
        char c = Take();
        if (c == '\\' && at_ < text_.size()) c = Take() == 'n' ? '\n' : text_[at_ - 1];
        token.text += c;
      }
      WEIR_CHECK(at_ < text_.size(), ErrorCode::kInvalidModel, "line ", token.line, " column ",
                 token.column, ": the string is not closed");
      Take();
    } else if (IsWord(Peek())) {
      token.kind = Token::Kind::kWord;
      while (at_ < text_.size() && IsWord(Peek())) token.text += Take();
    } else {
      token.kind = Token::Kind::kMark;
      token.text = Take();
      if (token.text == "=" && Peek() == '>') token.text += Take();
    }
    return token;
  }

  const std::string& text_;
  size_t at_ = 0;
  int line_ = 1, column_ = 1;
};

struct Typed {
  DType dtype = DType::kUndefined;
  Shape shape;
  bool has_shape = false;
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::unique_ptr<Graph> Run() {
    Expect("graph");
    auto graph = ParseGraph();
    if (Peek().kind != Token::Kind::kEnd) Fail(Peek(), "expected the end of the text");
    return graph;
  }

 private:
  using Kind = Token::Kind;

  [[noreturn]] void Fail(const Token& at, const std::string& what) const {
    throw Error(ErrorCode::kInvalidModel,
                StrCat("graph text, line ", at.line, " column ", at.column, ": ", what, ", got '",
                       at.kind == Kind::kEnd ? "end of text" : at.text, "'"));
  }
  const Token& Peek() const { return tokens_[at_]; }
  Token Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool Is(std::string_view text) const { return Peek().kind != Kind::kString && Peek().text == text; }
  bool Accept(std::string_view text) {
    if (!Is(text)) return false;
    Take();
    return true;
  }
  void Expect(std::string_view text) {
    if (!Accept(text)) Fail(Peek(), StrCat("expected '", text, "'"));
  }
  std::string TakeName() {
    if (Peek().kind != Kind::kWord && Peek().kind != Kind::kString) Fail(Peek(), "expected a name");
    return Take().text;
  }
  // Items separated by commas up to `close`.
  template <class F>
  void List(std::string_view close, F item) {
    while (!Accept(close)) {
      item();
      if (!Is(close)) Expect(",");
    }
  }

  template <class T>
  T Number(const Token& token) const {
    T value{};
    const char* end = token.text.data() + token.text.size();
    const auto [stop, error] = std::from_chars(token.text.data(), end, value);
    if (token.kind != Kind::kWord || error != std::errc{} || stop != end) {
      Fail(token, "expected a number");
    }
    return value;
  }

  Dim ParseDim() {
    const Token token = Take();
    if (token.text == "?") return Dim::Unknown();
    Dim dim = 1;
    for (size_t from = 0, to = 0; to != std::string::npos; from = to + 1) {
      to = token.text.find('*', from);
      Token factor = token;
      factor.text = token.text.substr(from, to == std::string::npos ? to : to - from);
      if (factor.text == "batch") {
        dim = dim * Dim::Batch();
      } else if (factor.text == "sequence") {
        dim = dim * Dim::Sequence();
      } else {
        dim = dim * Dim(Number<int64_t>(factor));
      }
    }
    return dim;
  }

  Typed ParseType() {
    const Token token = Peek();
    Typed type{.dtype = DTypeFromName(TakeName()), .shape = {}};
    if (type.dtype == DType::kUndefined && token.text != "undefined") {
      Fail(token, "expected an element type such as float or int64");
    }
    type.has_shape = Accept("[");
    if (type.has_shape) List("]", [&] { type.shape.push_back(ParseDim()); });
    return type;
  }

  TensorDataPtr ParseData(const Typed& type) {
    const Token start = Peek();
    if (!type.has_shape || !IsConcrete(type.shape)) Fail(start, "a constant needs a concrete shape");
    Array<float> array;
    array.dtype = type.dtype;
    array.dims = ToDims(type.shape);
    std::vector<double> doubles;
    Expect("{");
    List("}", [&] {
      const Token token = Take();
      if (token.text.starts_with("hash:") || token.text == "missing") {
        Fail(token, "a constant must carry its values to be read");
      }
      if (type.dtype == DType::kFloat64) {
        doubles.push_back(Number<double>(token));
      } else if (IsFloat(type.dtype)) {
        array.f.push_back(Number<float>(token));
      } else {
        array.i.push_back(Number<int64_t>(token));
      }
    });
    const size_t count = doubles.size() + array.f.size() + array.i.size();
    if (static_cast<int64_t>(count) != array.elements()) {
      Fail(start, StrCat("expected ", array.elements(), " values and found ", count));
    }
    if (type.dtype != DType::kFloat64) return ToTensorData(array);
    std::vector<std::byte> bytes(count * sizeof(double));
    if (count > 0) std::memcpy(bytes.data(), doubles.data(), bytes.size());
    return TensorData::Owned(type.dtype, array.dims, std::move(bytes));
  }

  Attribute ParseNumber(const Token& token) const {
    if (token.text.find_first_not_of("-0123456789") == std::string::npos) return Number<int64_t>(token);
    return static_cast<double>(Number<float>(token));
  }

  Attribute ParseList() {
    std::vector<int64_t> ints;
    std::vector<double> floats;
    std::vector<std::string> strings;
    List("]", [&] {
      const Token token = Take();
      if (token.kind == Kind::kString) return strings.push_back(token.text);
      const Attribute number = ParseNumber(token);
      if (const auto* value = std::get_if<double>(&number)) return floats.push_back(*value);
      ints.push_back(std::get<int64_t>(number));
    });
    if ((ints.empty() ? 0 : 1) + (floats.empty() ? 0 : 1) + (strings.empty() ? 0 : 1) > 1) {
      Fail(Peek(), "a list mixes types (write floats as 1.0) before this place");
    }
    if (!floats.empty()) return floats;
    if (!strings.empty()) return strings;
    return ints;
  }

  Attribute ParseAttribute() {
    if (Peek().kind == Kind::kString) return Take().text;
    if (Accept("[")) return ParseList();
    if (Accept("graph")) return GraphPtr(ParseGraph());
    if (Accept("floats")) return Expect("["), Expect("]"), Attribute(std::vector<double>());
    if (Accept("strings")) return Expect("["), Expect("]"), Attribute(std::vector<std::string>());
    if (DTypeFromName(Peek().text) != DType::kUndefined) {
      const Typed type = ParseType();
      return ParseData(type);
    }
    return ParseNumber(Take());
  }

  Value* Declare(Graph& graph, const Typed& type, Role role) {
    const Token token = Peek();
    const std::string name = TakeName();
    if (graph.FindValue(name) != nullptr) Fail(token, "the name is declared twice");
    Value* value = graph.AddValue(name, role);
    value->dtype = type.dtype;
    value->shape = type.shape;
    value->has_shape = type.has_shape;
    return value;
  }

  bool ParseDeclaration(Graph& graph) {
    if (Accept("constant")) {
      const Typed type = ParseType();
      const Token token = Peek();
      const std::string name = TakeName();
      if (graph.FindValue(name) != nullptr) Fail(token, "the name is declared twice");
      Expect("=");
      graph.AddConstant(name, ParseData(type));
      return true;
    }
    if (Accept("gradient")) return Declare(graph, ParseType(), Role::kGradient);
    if (Accept("state")) return Declare(graph, ParseType(), Role::kOptimizerState);
    if (!Accept("parameter")) return false;
    Value* value = Declare(graph, ParseType(), Role::kParameter);
    value->parameter = std::make_unique<ParameterInfo>();
    value->parameter->original_rank = static_cast<int>(value->shape.size());
    if (IsConcrete(value->shape)) {
      value->parameter->initializers.push_back(
          {.tensor = value->name, .dims = ToDims(value->shape), .dtype = value->dtype, .perm = {}, .offset = {}});
    }
    return true;
  }

  // A constant written where it is used, as CanonicalText does: int64[2]{0, -1}.
  bool IsInlineConstant() const {
    return Peek().kind == Kind::kWord && DTypeFromName(Peek().text) != DType::kUndefined &&
           at_ + 1 < tokens_.size() && tokens_[at_ + 1].text == "[";
  }

  void ParseNode(Graph& graph, Phase phase, const std::string& first) {
    const Token start = tokens_[at_ - 1];
    std::vector<std::string> results = {first};
    while (Accept(",")) results.push_back(TakeName());
    Expect("=");
    std::string op = TakeName(), domain;
    if (const size_t colon = op.rfind("::"); colon != std::string::npos) {
      domain = op.substr(0, colon);
      op = op.substr(colon + 2);
    }
    Attributes attributes;
    if (Accept("<")) {
      List(">", [&] {
        std::string key = TakeName();
        Expect("=");
        attributes.Set(std::move(key), ParseAttribute());
      });
    }
    std::vector<Value*> inputs, outputs;
    Expect("(");
    List(")", [&] {
      const Token token = Peek();
      if (IsInlineConstant()) {
        const Typed type = ParseType();
        inputs.push_back(graph.AddConstant("constant", ParseData(type)));
        return;
      }
      const std::string name = TakeName();
      inputs.push_back(name.empty() ? nullptr : graph.FindValue(name));
      if (inputs.back() == nullptr && !name.empty()) Fail(token, "the value is not defined before this use");
    });
    for (const std::string& name : results) {
      if (graph.FindValue(name) != nullptr) Fail(start, StrCat("'", name, "' is defined twice"));
      outputs.push_back(name.empty() ? nullptr : graph.AddValue(name));
    }
    try {
      Node* node = graph.AddNode(GetOp(op, domain), inputs, outputs, std::move(attributes));
      node->source = StrCat(op, " '", first, "'");
      node->phase = phase;
      InferNode(*node);
    } catch (Error& error) {
      error.AddContext(StrCat("reading graph text, line ", start.line, " column ", start.column));
      throw;
    }
  }

  Phase ParsePhase() {
    constexpr std::string_view kNames[] = {"begin", "forward", "backward", "norm", "update"};
    for (size_t i = 0; i < std::size(kNames); ++i) {
      if (Accept(kNames[i])) return static_cast<Phase>(i);
    }
    Fail(Peek(), "expected a phase: begin, forward, backward, norm or update");
  }

  std::unique_ptr<Graph> ParseGraph() {
    auto graph = std::make_unique<Graph>();
    if (!Is("(")) graph->name = TakeName();
    Expect("(");
    List(")", [&] { graph->inputs.push_back(Declare(*graph, ParseType(), Role::kInput)); });
    Expect("=>");
    Expect("(");
    struct Result {
      Typed type;
      Token token;
    };
    std::vector<Result> results;
    List(")", [&] {
      Typed type = ParseType();
      results.push_back({std::move(type), Peek()});
      TakeName();
    });
    while (ParseDeclaration(*graph)) {
    }
    Expect("{");
    Phase phase = Phase::kForward;
    while (!Accept("}")) {
      const std::string first = TakeName();
      if (first == "phase" && Peek().kind == Kind::kWord) {
        phase = ParsePhase();
      } else {
        ParseNode(*graph, phase, first);
      }
    }
    for (const auto& [type, token] : results) {
      Value* value = graph->FindValue(token.text);
      if (value == nullptr) Fail(token, "the graph output is never defined");
      CheckType(*value, type, token);
      graph->outputs.push_back(value);
    }
    return graph;
  }

  // The signature is a claim about what inference finds; unknown dims claim nothing.
  void CheckType(const Value& value, const Typed& type, const Token& token) const {
    bool agrees = value.dtype == DType::kUndefined || value.dtype == type.dtype;
    if (value.has_shape && type.has_shape) {
      agrees = agrees && value.shape.size() == type.shape.size();
      for (size_t i = 0; agrees && i < type.shape.size(); ++i) {
        agrees = !value.shape[i].IsKnown() || !type.shape[i].IsKnown() || value.shape[i] == type.shape[i];
      }
    }
    if (!agrees) {
      Fail(token, StrCat("the signature says ", DTypeName(type.dtype), ToString(type.shape),
                         " but inference finds ", DTypeName(value.dtype), ToString(value.shape)));
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace

std::unique_ptr<Graph> ParseText(const std::string& text) { return Parser(Lexer(text).Run()).Run(); }

}  // namespace weir
