#include "kernels/cuda/flash/flash.h"
#include "kernels/cuda/flash/fp32/flash_fp32.h"
#include "kernels/cuda/naive/naive.h"
#include "kernels/cuda/variant.h"

#ifdef ATTEND_HAVE_SM90
#include "kernels/cuda/flash/sm90/flash_sm90.h"
#endif

namespace attend::cuda {

std::span<const Variant> Variants() {
  static const Variant table[] = {
      flash_fp32::kVariant,  naive::kNaiveVariant,   naive::kOnlineVariant,
      flash::kDecodeVariant, flash::kPrefillVariant,
#ifdef ATTEND_HAVE_SM90
      flash_sm90::kVariant,  // after those that are better at few queries
#endif
  };
  return table;
}

}  // namespace attend::cuda
