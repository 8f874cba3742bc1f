#pragma once
#include <filesystem>
#include <memory>

#include "optim/token_file.h"

namespace weir {

// Token ids as JSON, one document a line:
//   {"prompt": [ids], "completion": [ids]}     the completion alone is predicted
//   {"input_ids": [ids], "labels": [ids]}      labels[i] = input_ids[i], or -100 where it is not to be predicted;
//                                              without "labels" all are
// "id", "text", "source" and "meta" are passed over, blank lines too; any other key, and one that comes twice, is refused.
// Held in memory, five bytes a token. Throws InvalidArgument naming the line.
std::unique_ptr<TokenFile> OpenJsonl(const std::filesystem::path& path);

}  // namespace weir
