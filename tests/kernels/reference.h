// Attention in float64, as its definition reads: what every kernel is judged by. Obvious, not fast.
#ifndef ATTEND_TESTS_KERNELS_REFERENCE_H_
#define ATTEND_TESTS_KERNELS_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace attend::test {

// The right answer of one problem, contiguous.
struct Expected {
  std::vector<double> out;      // [q_len_padded, q_heads, v_head_dim]
  std::vector<double> lse;      // [q_heads, q_len_padded]
  std::vector<double> weights;  // [q_heads, rows wanted, kv_len_padded]; empty where none are wanted
  double score_max = 0;         // largest finite |score| of a visible pair
  double value_max = 0;         // largest finite |v|
};

// Whether query row may see the key, by causal mask, window and boolean mask (not by a bias of -inf).
bool MaySee(const Problem& problem, int64_t head, int64_t row, int64_t key);

// Where a token of k (v) lies, in elements from the base pointer, pages followed.
int64_t KOffset(const Problem& problem, int64_t key, int64_t head);
int64_t VOffset(const Problem& problem, int64_t key, int64_t head);

enum class Arithmetic {
  kExact,      // float64 throughout
  kInputType,  // scores, weights and outputs rounded to the launch's dtype: attention done plainly in it
};

// Pointers of the problem are host pointers; its outputs are not touched.
Expected Reference(const Launch& launch, const Problem& problem, Arithmetic arithmetic = Arithmetic::kExact);

}  // namespace attend::test

#endif  // ATTEND_TESTS_KERNELS_REFERENCE_H_
