#pragma once
#include <cstdint>
#include <limits>

namespace weir {

// Columns of one (max, sum) pair, unless a node says otherwise: part of the numerical definition of a log-sum-exp.
inline constexpr int64_t kVocabularyLeaf = 2048;

// log(sum exp) of one token: the (max, sum) of each vocabulary leaf joins the running pair in turn.
struct LogSum {
  float top = -std::numeric_limits<float>::infinity(), sum = 0;

  // `width` columns that begin at a leaf edge and end at one or at the vocabulary's end.
  void Add(const float* logits, int64_t width, int64_t leaf_columns = kVocabularyLeaf);
  float Value() const;
};

// out[i] = (exp(logits[i] - lse) - [i = label]) * factor over the columns of one token; a label
// outside [0, width) is none of them. out may be logits.
void LogitsGradient(const float* logits, int64_t width, int64_t label, float lse, float factor,
                    float* out);

}  // namespace weir
