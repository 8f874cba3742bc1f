#include "importer/problems.h"

#include <algorithm>

namespace weir {
namespace {

constexpr size_t kShown = 20;

// The message with its outer frames, indented as one entry of a list.
std::string Entry(const Error& error) {
  std::string text = error.message();
  for (const std::string& frame : error.context()) text += " (while " + frame + ")";
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 3) text.insert(at + 1, "  ");
  return "\n  " + text;
}

}  // namespace

void Problems::Add(const Error& error) {
  if (count_++ < kShown) shown_.push_back(error);
}

void Problems::Report() const {
  if (shown_.empty()) return;
  if (count_ == 1) throw Error(shown_[0]);
  const bool alike = std::all_of(shown_.begin(), shown_.end(),
                                 [&](const Error& e) { return e.code() == shown_[0].code(); });
  std::string text = StrCat("the model has ", count_, " problems:");
  for (const Error& error : shown_) text += Entry(error);
  if (count_ > shown_.size()) text += StrCat("\n  and ", count_ - shown_.size(), " more");
  throw Error(alike ? shown_[0].code() : ErrorCode::kInvalidModel, text);
}

}  // namespace weir
