#include "graph/error.h"

#include <algorithm>

namespace weir {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidModel: return "InvalidModel";
    case ErrorCode::kUnsupportedOp: return "UnsupportedOp";
    case ErrorCode::kInvalidShape: return "InvalidShape";
    case ErrorCode::kInvalidArgument: return "InvalidArgument";
    case ErrorCode::kBudgetExceeded: return "BudgetExceeded";
    case ErrorCode::kDeviceError: return "DeviceError";
    case ErrorCode::kCommError: return "CommError";
    case ErrorCode::kIoError: return "IoError";
    case ErrorCode::kInternal: return "Internal";
  }
  return "Internal";
}

Error::Error(ErrorCode code, std::string message, std::source_location location)
    : code_(code), message_(std::move(message)), location_(location) {
  Render();
}

Error& Error::AddContext(std::string frame) {
  context_.push_back(std::move(frame));
  Render();
  return *this;
}

void Error::Render() {
  text_ = StrCat(ErrorCodeName(code_), ": ", message_);
  for (const std::string& frame : context_) text_ += "\n  while " + frame;
}

std::string NearestName(std::string_view name, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= name.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j < row.size(); ++j) {
        const size_t above = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1,
                           diagonal + (name[i - 1] == candidate[j - 1] ? 0 : 1)});
        diagonal = above;
      }
    }
    if (row.back() < best_distance) best_distance = row.back(), best = candidate;
  }
  return best;
}

}  // namespace weir
