#pragma once
#include <filesystem>
#include <memory>

#include "optim/token_file.h"

namespace weir {

// Token ids as JSON, one document a line:
//   {"prompt": [ids], "completion": [ids]}     the completion alone is predicted
//   {"input_ids": [ids], "labels": [ids]}      labels[i] = input_ids[i], or -100 where it is not to be predicted;
//                                              without "labels" all are
// Either with "weights" (or "loss_mask"): what predicting each token counts for in the loss, finite and not negative; one for each
// of input_ids or completion. 0 is as -100. All lines of a file have them, or none.
// "id", "text", "source" and "meta" are passed over, blank lines too; any other key, and one that comes twice, is refused.
// Held in memory, five bytes a token, nine with weights. Throws InvalidArgument naming the line.
std::unique_ptr<TokenFile> OpenJsonl(const std::filesystem::path& path);

}  // namespace weir
