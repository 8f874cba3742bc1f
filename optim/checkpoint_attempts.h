#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/checkpoint_index.h"
#include "optim/training_session.h"

namespace weir {

// Tries `candidates` in order until every rank could `read` one, and returns which. Every rank calls it with as many, and all agree.
// Why each one before it could not be read is added to `reasons`, with the rank. InvalidArgument from `read` says that a whole one
// does not belong here: all ranks throw it.
std::optional<size_t> FirstReadable(Communicator* world, const std::vector<std::filesystem::path>& candidates,
                                    const std::function<void(const std::filesystem::path&)>& read, std::vector<std::string>& reasons);

// Fills the session's state of these kinds (of "mvw"): what this rank holds, wherever it lies in the checkpoint.
void ReadHeld(TrainingSession& session, const std::filesystem::path& checkpoint, const CheckpointIndex& index, std::string_view kinds);

// The first ten, a line each, and how many more.
std::string FirstOf(const std::vector<std::string>& problems);

}  // namespace weir
