#include <cstdio>
#include <fstream>
#include <iomanip>
#include <ostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "optim/trainer.h"

namespace weir {

struct MetricsLog::Impl {
  std::filesystem::path path;
  std::ofstream out;
};

MetricsLog::MetricsLog(const std::filesystem::path& file) : impl_(std::make_unique<Impl>()) {
  impl_->path = file;
  impl_->out.open(file, std::ios::app);
  WEIR_CHECK(impl_->out.good(), ErrorCode::kIoError, "cannot open '", file.string(), "' for writing");
}
MetricsLog::~MetricsLog() = default;

void MetricsLog::Write(const StepRecord& r) {
  const nlohmann::ordered_json line = {
      {"step", r.step},       {"loss", r.loss},         {"grad_norm", r.grad_norm},
      {"learning_rate", r.learning_rate}, {"tokens", r.tokens}, {"tokens_per_s", r.tokens_per_s},
      {"step_ms", r.step_ms}, {"skipped", r.skipped}};
  impl_->out << line.dump() << "\n" << std::flush;
  WEIR_CHECK(impl_->out.good(), ErrorCode::kIoError, "cannot write '", impl_->path.string(),
             "'; is the disk full?");
}

Progress::Progress(int64_t steps, int64_t every, std::ostream& out, bool terminal)
    : steps_(steps), every_(every > 0 ? every : 1), out_(out), terminal_(terminal) {}

void Progress::Show(const StepRecord& r) {
  mean_step_ms_ += (r.step_ms - mean_step_ms_) / static_cast<double>(std::min<int64_t>(r.step, 20));
  const bool last = r.step == steps_;
  if (!last && !terminal_ && r.step % every_ != 0 && r.step != 1) return;
  const auto eta_s = static_cast<int64_t>(static_cast<double>(steps_ - r.step) * mean_step_ms_ / 1e3 + 0.5);
  std::ostringstream line;
  line << "step " << std::setw(static_cast<int>(std::to_string(steps_).size())) << r.step << "/" << steps_ << std::fixed
       << "  loss " << std::setprecision(4) << r.loss << "  grad norm " << std::setprecision(3)
       << r.grad_norm << "  lr " << std::scientific << std::setprecision(2) << r.learning_rate << std::fixed
       << std::setprecision(0) << "  " << r.tokens_per_s << " tokens/s  ETA " << eta_s / 60 << ":" << std::setw(2)
       << std::setfill('0') << eta_s % 60 << (r.skipped ? "  SKIPPED: not finite" : "");
  if (terminal_) {
    constexpr int kBar = 24;
    const auto filled = static_cast<size_t>(r.step * kBar / std::max<int64_t>(steps_, 1));
    out_ << "\r[" << std::string(filled, '=') << std::string(kBar - filled, ' ') << "] " << line.str() << "\x1b[K";
    if (last) out_ << "\n";
  } else {
    out_ << line.str() << "\n";
  }
  out_ << std::flush;
}

}  // namespace weir
