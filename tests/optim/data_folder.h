// Data files in a folder of the test's own.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "graph/error.h"
#include "optim/token_file.h"

namespace weir {

namespace fs = std::filesystem;

class Data : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / ("weir_data_" + std::string(info->name()) + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  template <class T>
  fs::path Write(const std::string& name, const std::vector<T>& values, const std::string& prefix = "") {
    std::ofstream out(folder_ / name, std::ios::binary);
    out << prefix;
    out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
    return folder_ / name;
  }
  template <class T>
  static std::vector<T> Iota(int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    std::iota(values.begin(), values.end(), T{0});
    return values;
  }
  static std::string Message(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_;
};

inline std::vector<int64_t> ReadAll(const TokenFile& file) {
  std::vector<int64_t> ids(static_cast<size_t>(file.tokens()));
  file.Read(0, ids);
  return ids;
}

}  // namespace weir
