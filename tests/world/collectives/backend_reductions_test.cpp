#include "world/collectives/backend_reductions.h"

#include <gtest/gtest.h>

namespace intarsia {
namespace {

using enum Reduction;

const BackendReductions kGloo = reductions_of("gloo");
const BackendReductions kNccl = reductions_of("nccl");
const BackendReductions kShm = reductions_of("shm");

Placement by(Reduction how) { return Placement::partial(how); }

TEST(BackendReductions, UnknownBackendsReduceAsGlooDoes) {
  for (const char* name : {"in_process", "ucc", "", "NCCL"}) {
    const BackendReductions found = reductions_of(name);
    EXPECT_FALSE(found.as_here || found.sums_halves || found.scatters_well) << name;
    EXPECT_TRUE(found.combines_bits);
  }
}

TEST(BackendReductions, SumsAndProductsOfFloatsAreLeftToAll) {
  for (const BackendReductions& backend : {kGloo, kNccl, kShm}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong, at::kByte}) {
      EXPECT_TRUE(backend.reduces(type, sum));
      EXPECT_TRUE(backend.reduces(type, product));
    }
    EXPECT_FALSE(backend.reduces(at::kFloat, norm));
  }
}

TEST(BackendReductions, OnlySharedMemoryKeepsNansInMinAndMax) {
  for (const Reduction how : {min, max}) {
    EXPECT_FALSE(kGloo.reduces(at::kFloat, how));
    EXPECT_FALSE(kNccl.reduces(at::kDouble, how));
    EXPECT_TRUE(kShm.reduces(at::kFloat, how));
    EXPECT_TRUE(kGloo.reduces(at::kInt, how)) << "integers have none";
  }
}

TEST(BackendReductions, HalvesAreNotLeftToGloo) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
    EXPECT_FALSE(kGloo.reduces(type, sum));
    EXPECT_TRUE(kNccl.reduces(type, sum));
    EXPECT_FALSE(kNccl.reduces(type, product));
    EXPECT_TRUE(kShm.reduces(type, product));
  }
}

TEST(BackendReductions, BitsAreNotLeftToNccl) {
  for (const Reduction how : {bit_and, bit_or, bit_xor}) {
    EXPECT_TRUE(kGloo.reduces(at::kInt, how));
    EXPECT_FALSE(kNccl.reduces(at::kInt, how));
    EXPECT_TRUE(kShm.reduces(at::kBool, how));
    EXPECT_FALSE(kGloo.reduces(at::kBool, how));
  }
  EXPECT_FALSE(kGloo.reduces(at::kShort, sum));
}

TEST(BackendReductions, GlooScattersNothing) {
  EXPECT_FALSE(kGloo.scatters_reduced(at::kFloat, sum));
  EXPECT_TRUE(kNccl.scatters_reduced(at::kFloat, sum));
  EXPECT_FALSE(kNccl.scatters_reduced(at::kFloat, max)) << "nor what it would reduce badly";
  EXPECT_TRUE(kShm.scatters_reduced(at::kFloat, max));
  EXPECT_TRUE(kGloo.native(by(sum), at::kFloat, /*scatter=*/false));
  EXPECT_FALSE(kGloo.native(by(sum), at::kFloat, /*scatter=*/true));
  EXPECT_TRUE(kNccl.native(by(avg), at::kFloat, /*scatter=*/true));
}

TEST(BackendReductions, AveragesAreAskedForAsSums) {
  EXPECT_EQ(kGloo.asked_of_backend(by(avg), at::kFloat), sum);
  EXPECT_EQ(kNccl.asked_of_backend(by(avg), at::kFloat), sum);
  EXPECT_EQ(kShm.asked_of_backend(by(avg), at::kFloat), avg);
  EXPECT_EQ(kShm.asked_of_backend(by(avg), at::kComplexFloat), sum) << "of reals";
  EXPECT_EQ(kShm.asked_of_backend(by(sum), at::kFloat), sum);
  EXPECT_EQ(kGloo.asked_of_backend(by(max), at::kInt), max);
  EXPECT_TRUE(kGloo.native(by(avg), at::kFloat, /*scatter=*/false));
  EXPECT_FALSE(kGloo.native(by(avg), at::kHalf, /*scatter=*/false));
}

TEST(BackendReductions, ComplexNumbersAreAddedAsReals) {
  for (const BackendReductions& backend : {kGloo, kNccl, kShm}) {
    EXPECT_TRUE(backend.native(by(sum), at::kComplexFloat, /*scatter=*/false));
    EXPECT_TRUE(backend.native(by(avg), at::kComplexDouble, /*scatter=*/false));
    EXPECT_FALSE(backend.native(by(product), at::kComplexFloat, /*scatter=*/false));
    EXPECT_FALSE(backend.native(by(sum), at::kComplexHalf, /*scatter=*/false));
    EXPECT_FALSE(backend.native(Placement::partial_norm(2), at::kDouble, /*scatter=*/false));
  }
}

}  // namespace
}  // namespace intarsia
