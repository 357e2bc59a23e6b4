#include "kernels/cuda/flash/flash.h"
#include "kernels/cuda/flash/fp32/flash_fp32.h"
#include "kernels/cuda/naive/naive.h"
#include "kernels/cuda/variant.h"

namespace attend::cuda {

std::span<const Variant> Variants() {
  static const Variant table[] = {
      flash_fp32::kVariant,  naive::kNaiveVariant,   naive::kOnlineVariant,
      flash::kDecodeVariant, flash::kPrefillVariant,
  };
  return table;
}

}  // namespace attend::cuda
