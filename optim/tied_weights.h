#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph_passes/pipeline.h"
#include "importer/safetensors.h"

namespace weir {

// A tensor that several names of a file mean is one parameter with a piece for each name. Pieces by the block of the parameter that
// they fill: each but the first of a block is a copy of it. First is the name deepest in the module tree: what loads the body of a
// model alone knows it and no head.
std::vector<std::vector<ParameterPiece>> BlocksOf(const std::vector<ParameterPiece>& pieces);

// Parameters, by name, that a file of weights holds once, whatever they are called: the embedding that is the head, which loaders
// tie again. Others of several names (norms of a fresh model, all ones, that an exporter has merged) are written under each.
using SavedOnce = std::set<std::string>;
SavedOnce TiedParameters(const Graph& canonical);

// What a file holds of a parameter: all pieces, or one of each block.
std::vector<ParameterPiece> SavedPieces(const Value& parameter, const SavedOnce& once);

// Names that a loader expects and a file that holds the parameter once has not, in the form of safetensors.torch.save_model: a
// metadata entry of the header, left-out name -> name of the copy that is there.
std::map<std::string, std::string> TiedNames(const Value& parameter);

// Of a file that was read: its entries of that form.
std::map<std::string, std::string> TiedNamesIn(const Safetensors& file);
// Its tensors under the left-out names too, without a copy of their bytes.
NamedTensors WithTiedNames(const Safetensors& file);

// Throws where `weights` hold several tensors of one block of a parameter of shape `whole`, and they differ: the model has one place for them.
void CheckCopiesAgree(const std::vector<ParameterPiece>& block, const Dims& whole, const NamedTensors& weights);

// Gives the parameters of a canonical graph that were named after `names` the names that its header ties to theirs and, where the
// embedding is the head too, the name that the model's file has for it.
void AddTiedNames(Graph& canonical, const Safetensors& names);

// The same where neither knows: a checkpoint of transformers keeps the embedding alone, and its config.json, in the folder of `file`,
// says that the head is tied to it, which a causal language model calls lm_head.weight.
void AddTiedHead(Graph& canonical, const std::filesystem::path& file);

// Notes where `names` has a tensor of an embedding's dims and of other values, though the graph has the embedding for its head.
void TellHeadApart(Graph& canonical, const Safetensors& names);

// What train should say at its start when it was asked for both copies and has one name for the embedding that is the head; a line, or "".
std::string LacksTiedName(const Graph& canonical);

}  // namespace weir
