#include "cli/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "cli/config_file.h"
#include "graph/error.h"

namespace weir {
namespace {

std::vector<std::string> KnownNames(const std::vector<po::options_description>& groups) {
  std::vector<std::string> names;
  for (const auto& group : groups) {
    for (const auto& option : group.options()) names.push_back(option->long_name());
  }
  return names;
}

std::string Suggest(const std::string& name, const std::vector<po::options_description>& groups) {
  const std::string nearest = NearestName(name, KnownNames(groups));
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

std::string Shortest(double value) {  // the fewest digits that read back exactly
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::string ValueText(const boost::any& value) {
  std::ostringstream text;
  if (const auto* v = boost::any_cast<std::string>(&value)) text << *v;
  if (const auto* v = boost::any_cast<int64_t>(&value)) text << *v;
  if (const auto* v = boost::any_cast<int>(&value)) text << *v;
  if (const auto* v = boost::any_cast<uint64_t>(&value)) text << *v;
  if (const auto* v = boost::any_cast<double>(&value)) text << Shortest(*v);
  if (const auto* v = boost::any_cast<bool>(&value)) text << (*v ? "true" : "false");
  return text.str();
}

// Where a config file gave a flag its value, for messages about that value.
std::map<std::string, std::string>& ConfigPlaces() {
  static std::map<std::string, std::string> places;
  return places;
}

// What a config file says, as if its lines were flags; `given` are the command line's, which win.
po::parsed_options ParseConfig(const std::string& path, const po::options_description& all, const po::variables_map& given,
                               const std::vector<po::options_description>& groups) {
  std::ifstream file(path);
  if (!file || !std::filesystem::is_regular_file(path)) throw UsageError("cannot read config file '" + path + "': it must be a regular file, which every rank reads again");
  po::parsed_options parsed(&all);
  for (const auto& [key, value, line] : ReadConfig(file, path)) {
    const std::string place = StrCat("config file '", path, "', line ", line);
    const auto* known = all.find_nothrow(key, false);
    if (known == nullptr) throw UsageError(StrCat(place, ": unknown option '", key, "'", Suggest(key, groups)));
    if (known->long_name() == "config" || known->long_name() == "help") {
      throw UsageError(StrCat(place, ": '", key, "' belongs on the command line; leave it out"));
    }
    if (given.count(key) == 0 || given[key].defaulted()) ConfigPlaces()[key] = place;
    parsed.options.emplace_back(key, std::vector<std::string>{value});
  }
  return parsed;
}

// Conversions to unsigned numbers wrap negative ones around.
void RefuseNegatives(const po::parsed_options& parsed, const po::options_description& all) {
  for (const auto& option : parsed.options) {
    const auto* known = all.find_nothrow(option.string_key, false);
    if (known == nullptr || dynamic_cast<const po::typed_value<uint64_t>*>(known->semantic().get()) == nullptr) continue;
    for (const std::string& value : option.value) {
      if (value.find('-') != value.npos) throw UsageError("--" + option.string_key + "=" + value + " must not be negative");
    }
  }
}

// "|" ends a cell of a Markdown table, "<" begins an HTML tag.
std::string Cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

// "arg (=100)" -> "100".
std::string DefaultOf(const po::option_description& option) {
  if (option.semantic()->max_tokens() == 0) return "off";
  const std::string text = option.semantic()->name();
  const size_t at = text.find("(=");
  return at == text.npos ? (option.semantic()->is_required() ? "required" : "") : text.substr(at + 2, text.rfind(')') - at - 2);
}

// "Caption:\n ..." -> "Caption"
std::string CaptionOf(const po::options_description& group) {
  std::ostringstream text;
  text << group;
  return text.str().substr(0, text.str().find(":\n"));
}

void PrintMan(const std::string& usage, const std::vector<po::options_description>& groups) {
  std::cout << ".PP\n\\fB" << Roff(usage) << "\\fR\n";
  for (const auto& group : groups) {
    std::cout << ".SS " << Roff(CaptionOf(group)) << "\n";
    for (const auto& option : group.options()) {
      const std::string value = DefaultOf(*option);
      std::cout << ".TP\n\\fB" << Roff("--" + option->long_name()) << "\\fR" << (value.empty() ? "" : " (" + Roff(value) + ")") << "\n"
                << Roff(option->description()) << "\n";
    }
  }
}

// True when `flag` asked for the flags in another form than text.
bool PrintAs(const std::string& flag, const std::string& usage, const std::vector<po::options_description>& groups) {
  if (flag == kHelpNames) {
    for (const std::string& name : KnownNames(groups)) std::cout << "--" << name << "\n";
    std::cout << "--help\n";
  } else if (flag == kHelpMan) {
    PrintMan(usage, groups);
  } else if (flag == kHelpMarkdown) {
    std::cout << "    " << usage << "\n";
    for (const auto& group : groups) {
      std::cout << "\n**" << Cell(CaptionOf(group)) << "**\n\n| flag | default | |\n|---|---|---|\n";
      for (const auto& option : group.options()) {
        std::cout << "| `--" << option->long_name() << "` | " << Cell(DefaultOf(*option)) << " | " << Cell(option->description()) << " |\n";
      }
    }
  }
  return flag == kHelpNames || flag == kHelpMarkdown || flag == kHelpMan;
}

// "--key" as a whole word, or what the parser writes.
bool Mentions(const std::string& message, const std::string& key) {
  const std::string flag = "--" + key;
  for (size_t at = message.find(flag); at != message.npos; at = message.find(flag, at + 1)) {
    const char next = at + flag.size() < message.size() ? message[at + flag.size()] : ' ';
    if (next != '-' && std::isalnum(static_cast<unsigned char>(next)) == 0) return true;
  }
  return message.find("option '" + key + "'") != message.npos;
}

}  // namespace

std::string Roff(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = i == 0 || text[i - 1] == '\n';
    if (begins && (text[i] == '.' || text[i] == '\'')) out += "\\&";  // would be a request
    out += text[i] == '\\' ? "\\e" : text[i] == '-' ? "\\-" : std::string(1, text[i]);
  }
  return out;
}

bool ParseOptions(int argc, const char* const* argv, const std::string& usage,
                  const std::vector<po::options_description>& groups,
                  const std::vector<std::string>& positional, po::variables_map& values) {
  if (argc == 2 && PrintAs(argv[1], usage, groups)) return false;
  po::options_description all;
  for (const auto& group : groups) all.add(group);
  all.add_options()("help,h", "print this help");
  po::positional_options_description places;
  for (const std::string& name : positional) places.add(name.c_str(), 1);
  try {
    const auto parsed = po::command_line_parser(argc, argv)
                            .options(all)
                            .positional(places)
                            .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
                            .run();
    RefuseNegatives(parsed, all);
    po::store(parsed, values);
    if (values.count("help") != 0) {
      std::cout << "usage: " << usage << "\n";
      for (const auto& group : groups) std::cout << "\n" << group;
      return false;
    }
    if (values.count("config") != 0) {
      const auto config = ParseConfig(values["config"].as<std::string>(), all, values, groups);
      RefuseNegatives(config, all);
      po::store(config, values);
    }
    po::notify(values);
  } catch (const po::unknown_option& error) {
    std::string name = error.get_option_name();
    while (name.starts_with("-")) name.erase(0, 1);
    throw UsageError("unknown option '" + name + "'" + Suggest(name, groups));
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }
  return true;
}

std::string WithConfigPlaces(const std::string& message) {
  std::string text = message;
  for (const auto& [key, place] : ConfigPlaces()) {
    if (Mentions(message, key)) text += StrCat("\n  --", key, ": ", place);
  }
  return text;
}

po::typed_value<double>* Real(double& target) {
  return po::value<double>(&target)->default_value(target, Shortest(target));
}

std::vector<std::string> GivenNames(std::span<const po::options_description> groups, const po::variables_map& values) {
  std::vector<std::string> names;
  for (const auto& group : groups) {
    for (const auto& option : group.options()) {
      const auto it = values.find(option->long_name());
      if (it != values.end() && !it->second.defaulted()) names.push_back(option->long_name());
    }
  }
  return names;
}

std::string GivenFlags(std::span<const po::options_description> groups, const po::variables_map& values) {
  std::string given;
  for (const std::string& name : GivenNames(groups, values)) given += " --" + name;
  return given;
}

std::string ShellWord(const std::string& text) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || std::string_view("_-./,:=+@%").find(static_cast<char>(c)) != std::string_view::npos; };
  if (!text.empty() && std::ranges::all_of(text, plain)) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

std::string FlagWords(const std::string& name, const boost::any& value) {
  if (const auto* on = boost::any_cast<bool>(&value)) return *on ? " --" + name : "";
  const auto* list = boost::any_cast<std::vector<std::string>>(&value);
  std::string words;
  for (const std::string& item : list != nullptr ? *list : std::vector{ValueText(value)}) words += " --" + name + " " + ShellWord(item);
  return words;
}

std::string ResolvedConfig(const std::vector<po::options_description>& groups, const po::variables_map& values) {
  std::ostringstream out;
  for (const auto& group : groups) {
    for (const auto& option : group.options()) {
      const std::string& name = option->long_name();
      if (name == "config" || values.count(name) == 0) continue;
      const boost::any& value = values[name].value();
      if (const auto* list = boost::any_cast<std::vector<std::string>>(&value)) {
        for (const std::string& item : *list) out << name << " = " << ConfigValue(item) << "\n";
      } else {
        out << name << " = " << ConfigValue(ValueText(value)) << "\n";
      }
    }
  }
  return out.str();
}

}  // namespace weir
