#include "kernels/pipelined_llep/chunk_tables.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace weir {
namespace {

constexpr int64_t kRunWords = sizeof(RowRun) / sizeof(int64_t);
// Transfers of a rank in one exchange: what moves them has a limit of about twice that.
constexpr int64_t kMostTransfers = 1024;

int64_t MostHeld(const LlepKnobs& knobs) { return DivCeil(knobs.experts, knobs.ranks); }

void Join(std::vector<RowRun>& runs, const RowRun& run) {
  if (!runs.empty() && runs.back().from + runs.back().rows == run.from &&
      runs.back().to + runs.back().rows == run.to && runs.back().expert == run.expert) {
    runs.back().rows += run.rows;
  } else {
    runs.push_back(run);
  }
}

// One rank's rows of one chunk, as places of the array.
class Placer {
 public:
  Placer(const DispatchShape& shape, const ChunkRows& rows, int64_t rank, RowOrder order)
      : shape_(shape), rows_(rows), rank_(rank), order_(order) {}

  std::vector<RowRun> place;
  std::vector<RowExchange> exchanges;

  // Units are dealt to exchanges alike on all ranks: a rank sends or takes at most one message of
  // each source per unit.
  void Run() {
    exchanges.resize(
        static_cast<size_t>(DivCeil(std::ssize(rows_.chunk->units), UnitsPerExchange())));
    PlaceComputed();
    int64_t own = 0;  // rows that leave come before
    for (int64_t r = 0; r < rank_; ++r) own += rows_.sent[static_cast<size_t>(r)];
    const int64_t stay = rows_.sent[static_cast<size_t>(rank_)];
    for (const ChunkRows::HomeRun& run : rows_.home) {
      int64_t to = run.home < own ? run.home : run.home - stay;
      if (run.unit->rank == rank_) {
        to = kept_.at(run.unit);
      } else {
        Send(ExchangeOf(run.unit).leaving, {run.unit->rank, to, run.rows}, run.unit->expert);
      }
      Join(place, {run.sorted, to, run.rows, run.unit->expert});
    }
  }

 private:
  int64_t UnitsPerExchange() const {
    return std::max<int64_t>(1, kMostTransfers / shape_.knobs.ranks);
  }
  RowExchange& ExchangeOf(const LlepUnit* unit) {
    return exchanges[static_cast<size_t>((unit - rows_.chunk->units.data()) / UnitsPerExchange())];
  }

  // By source an expert's rows of one peer are neighbours on both ends, and one message.
  void Send(std::vector<RowMessage>& messages, const RowMessage& message, int64_t expert) {
    const auto key = std::tuple(&messages, message.peer, expert);
    const auto [last, fresh] = last_.try_emplace(key, messages.size());
    if (order_ == RowOrder::kCanonical || fresh) {
      messages.push_back(message);
    } else {
      messages[last->second].rows += message.rows;
    }
  }

  void PlaceComputed() {
    const auto ranks = static_cast<size_t>(shape_.knobs.ranks);
    auto away = rows_.away.begin();
    for (size_t first = 0, end = 0; first < rows_.units.size(); first = end) {
      const int64_t expert = rows_.units[first].unit->expert;
      while (end < rows_.units.size() && rows_.units[end].unit->expert == expert) ++end;
      const int64_t last_row = rows_.units[end - 1].end();
      auto behind = away;  // the expert's runs
      std::vector<int64_t> next(ranks);
      for (; behind != rows_.away.end() && behind->row < last_row; ++behind)
        next[static_cast<size_t>(behind->source)] += behind->rows;
      std::exclusive_scan(next.begin(), next.end(), next.begin(), rows_.units[first].first);
      for (size_t u = first; away != behind; ++away) {
        while (away->row >= rows_.units[u].end()) ++u;
        int64_t& by_source = next[static_cast<size_t>(away->source)];
        const int64_t row =
            shape_.home_rows() + (order_ == RowOrder::kCanonical ? away->row : by_source);
        by_source += away->rows;
        const LlepUnit* unit = rows_.units[u].unit;
        if (away->source == rank_) {
          kept_[unit] = row;
        } else {
          Send(ExchangeOf(unit).coming, {away->source, row, away->rows}, expert);
        }
      }
    }
  }

  const DispatchShape& shape_;
  const ChunkRows& rows_;
  const int64_t rank_;
  const RowOrder order_;
  std::map<const LlepUnit*, int64_t> kept_;  // this rank's own rows in a unit that it computes
  std::map<std::tuple<const void*, int64_t, int64_t>, size_t>
      last_;  // message of (side, peer, expert)
};

}  // namespace

ChunkTables::ChunkTables(const DispatchShape& shape, std::span<const ChunkRows> chunks,
                         int64_t rank, RowOrder order) {
  const LlepKnobs& knobs = shape.knobs;
  const auto position = [&](int64_t leaf) {
    return leaf * (shape.n / knobs.leaves) + std::min(leaf, shape.n % knobs.leaves);
  };
  const int64_t first = knobs.FirstExpert(rank), held = knobs.FirstExpert(rank + 1) - first;
  for (const ChunkRows& rows : chunks) {
    const int64_t begin = position(rows.chunk->first_leaf);
    Placer placer(shape, rows, rank, order);
    placer.Run();
    Chunk chunk{begin,
                position(rows.chunk->end_leaf) - begin,
                AppendRuns(placer.place),
                {},
                {},
                {},
                std::move(placer.exchanges)};
    std::vector<RowRun> experts;
    for (const ChunkRows::Unit& unit : rows.units) {
      chunk.units.push_back({unit.unit->expert - first, unit.first, unit.end()});
      Join(experts, {unit.first, unit.first, unit.unit->rows(), unit.unit->expert});
    }
    chunk.experts = AppendRuns(experts);
    chunk.table = AppendUnits(chunk.units, 0, held, words_);
    chunks_.push_back(std::move(chunk));
  }
}

ChunkTables::Runs ChunkTables::AppendRuns(std::span<const RowRun> runs) {
  const Runs appended{std::ssize(words_), std::ssize(runs)};
  for (const RowRun& run : runs)
    words_.insert(words_.end(), {run.from, run.to, run.rows, run.expert});
  return appended;
}

// An expert's rows in a leaf end at least one unit, every unit_rows of all rows end another; a unit
// is at most a run of either kind.
int64_t ChunkTables::MaxWords(const DispatchShape& shape) {
  const LlepKnobs& knobs = shape.knobs;
  const int64_t rows = knobs.ranks * knobs.top_k * knobs.max_tokens;
  const int64_t units = std::min(rows, knobs.experts * knobs.leaves + rows / knobs.unit_rows);
  return 2 * units * kRunWords + UnitTableWords(units, 0) +
         knobs.leaves * UnitTableWords(0, MostHeld(knobs));
}

}  // namespace weir
