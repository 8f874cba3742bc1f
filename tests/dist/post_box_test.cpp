#include "backend/cuda/post_box.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "backend/cpu/thread_communicator.h"
#include "backend/cuda/shared_memory.h"

namespace weir {
namespace {

struct Post {
  int64_t number = 0, square = 0;
};

TEST(PostBox, KeepsOrderAndRefusesWhenFull) {
  const auto box = std::make_unique<PostBox<Post>>();
  Post post;
  EXPECT_FALSE(box->Take(post));
  for (int64_t i = 0; i < PostBox<Post>::kPosts; ++i) EXPECT_TRUE(box->Put({i, i * i}));
  EXPECT_TRUE(box->Full());
  EXPECT_FALSE(box->Put({99, 99}));
  for (int64_t i = 0; i < PostBox<Post>::kPosts; ++i) {
    ASSERT_TRUE(box->Take(post));
    EXPECT_EQ(post.square, i * i);
  }
  EXPECT_FALSE(box->Take(post));
}

// Through memory that two ranks see at different addresses.
TEST(PostBox, CarriesPostsBetweenRanks) {
  constexpr int64_t kPosts = 20000;
  RunRanks(2, [](Communicator& host) {
    const SharedMemory memory(host, sizeof(PostBox<Post>));
    auto& box = *reinterpret_cast<PostBox<Post>*>(memory.data());
    for (int64_t i = 0; i < kPosts;) {
      Post post{i, i * i};
      const bool done = host.rank() == 0 ? box.Put(post) : box.Take(post);
      if (!done) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_EQ(post.number, i);
      ASSERT_EQ(post.square, i * i);
      ++i;
    }
    host.Barrier({"Barrier", "end"});
  });
}

}  // namespace
}  // namespace weir
