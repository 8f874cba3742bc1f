#include "cli/config_file.h"

#include <istream>
#include <string_view>

#include "cli/options.h"

namespace weir {
namespace {

constexpr const char* kSpace = " \t\r";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // editors on Windows begin a file with it

std::string_view Trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(kSpace);
  return from == text.npos ? std::string_view() : text.substr(from, text.find_last_not_of(kSpace) - from + 1);
}

// Up to a '#' that begins a comment.
std::string_view WithoutComment(std::string_view text) {
  for (size_t at = text.find('#'); at != text.npos; at = text.find('#', at + 1)) {
    if (at == 0 || std::string_view(kSpace).find(text[at - 1]) != std::string_view::npos) return text.substr(0, at);
  }
  return text;
}

// The quoted value that `text` starts with; only a comment may follow it. False when it is no such value.
bool ReadQuoted(std::string_view text, std::string& value) {
  for (size_t at = 1; at < text.size(); ++at) {
    if (text[at] == '"') return Trimmed(WithoutComment(text.substr(at + 1))).empty();
    const bool escaped = text[at] == '\\';
    if (escaped && ++at == text.size()) break;
    value += escaped && text[at] == 'n' ? '\n' : text[at];
  }
  return false;
}

}  // namespace

std::vector<ConfigEntry> ReadConfig(std::istream& in, const std::string& path) {
  std::vector<ConfigEntry> entries;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    if (number++ == 0 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    const auto fail = [&](const char* what) {
      throw UsageError("config file '" + path + "', line " + std::to_string(number) + ": " + what);
    };
    const std::string_view text = Trimmed(WithoutComment(line));
    if (text.empty()) continue;
    const size_t equals = line.find('=');
    const std::string_view key = Trimmed(text.substr(0, text.find('=')));
    if (text.find('=') == text.npos || key.empty()) fail("expected `key = value`");
    const std::string_view rest = Trimmed(std::string_view(line).substr(equals + 1));
    std::string value;
    if (!rest.starts_with('"')) {
      value = Trimmed(WithoutComment(std::string_view(line).substr(equals + 1)));
    } else if (!ReadQuoted(rest, value)) {
      fail("a quoted value must end in one quote, with nothing but a comment after it");
    }
    entries.push_back({std::string(key), value, number});
  }
  return entries;
}

std::string ConfigValue(const std::string& value) {
  const bool plain = Trimmed(value) == value && WithoutComment(" " + value).size() == value.size() + 1 &&
                     !value.starts_with('"') && value.find('\n') == value.npos;
  if (plain) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\' || c == '\n') quoted += '\\';
    quoted += c == '\n' ? 'n' : c;
  }
  return quoted + "\"";
}

}  // namespace weir
