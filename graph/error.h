#pragma once
#include <exception>
#include <source_location>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace weir {

// What went wrong, as one of a fixed set that callers can act on.
enum class ErrorCode {
  kInvalidModel,
  kUnsupportedOp,
  kInvalidShape,
  kInvalidArgument,
  kBudgetExceeded,
  kDeviceError,
  kCommError,
  kIoError,
  kInternal,
};

std::string_view ErrorCodeName(ErrorCode code);

// The one error type. `message` says: what - where - got vs expected - what to do.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message,
        std::source_location location = std::source_location::current());

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::source_location& location() const { return location_; }
  const std::vector<std::string>& context() const { return context_; }
  // "InvalidModel: <message>\n  while <context>..."; the text shown to users.
  const char* what() const noexcept override { return text_.c_str(); }

  // Adds an outer frame ("importing model.onnx") and returns *this for rethrow.
  Error& AddContext(std::string frame);

 private:
  void Render();
  ErrorCode code_;
  std::string message_;
  std::source_location location_;
  std::vector<std::string> context_;
  std::string text_;
};

// Concatenates with operator<<: StrCat("got ", 3, " expected ", 4).
template <class... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

// Fails with InvalidArgument-style errors caused by users. Asserts are for our own mistakes.
#define WEIR_CHECK(condition, code, ...)                          \
  do {                                                            \
    if (!(condition)) throw ::weir::Error(code, ::weir::StrCat(__VA_ARGS__)); \
  } while (false)

// Closest of `known` to `name` by edit distance, or "" when nothing is near.
std::string NearestName(std::string_view name, const std::vector<std::string>& known);

}  // namespace weir
