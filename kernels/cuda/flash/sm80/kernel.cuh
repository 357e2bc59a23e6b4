// FLASH with cp.async and mma.sync: the kernel of every chip from sm_80 on, and decode on all of them.
//
// A CTA takes one tile of packed query rows (tokens x query heads of one KV head) against a range of keys.
// Tiles of K and V come alternately through a ring of slots in shared memory: slot t + kSlots - 1 is asked
// for when slot t - 1 has been used up, so that kSlots - 1 tiles are always on their way. For each tile of
// keys, s = q·k on tensor cores, the online softmax in registers (Milakov and Gimelshein, arXiv:1805.02867,
// algorithm 3, with the running output of FlashAttention-2, arXiv:2307.08691, algorithm 1), and out += p·v
// with p taken straight from the score fragments. Scores never leave registers.
//
// NaN and infinities. A key that a row may not see has weight 0 there, but 0 * NaN is NaN: a value in V that
// is not finite would spread to every row whose CTA reads it. When a NaN shows up in out that the row's own
// scores do not explain, the CTA runs again on exact passes: once with what is not finite in V taken as 0,
// then twice with weights of 1 for visible keys against a V that is 1 where there is NaN or an infinity of
// one sign, which says for each element of out what must be added to it. Nothing of this costs anything
// when V is finite.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM80_KERNEL_CUH_
#define ATTEND_KERNELS_CUDA_FLASH_SM80_KERNEL_CUH_

#include <cstdint>

#include "kernels/cuda/flash/common.cuh"
#include "kernels/cuda/flash/plan.h"
#include "kernels/cuda/flash/sm80/load.cuh"
#include "kernels/cuda/flash/sm80/output.cuh"
#include "kernels/cuda/flash/sm80/ptx.cuh"
#include "kernels/cuda/flash/sm80/scores.cuh"
#include "kernels/cuda/flash/sm80/tile.h"
#include "kernels/cuda/launch_early.cuh"

namespace attend::cuda::flash {

// Keys that a query token sees by causal mask and window, within [0, kv_len).
__device__ inline int FirstKey(const FlashProblem& p, int token) {
  if (p.window_left < 0) return 0;
  const int64_t first = token + p.diagonal - p.window_left;
  return static_cast<int>(min(max(first, int64_t{0}), int64_t{p.kv_len}));
}
__device__ inline int LastKeyEnd(const FlashProblem& p, int token) {
  if (p.window_right < 0) return p.kv_len;
  const int64_t end = token + p.diagonal + p.window_right + 1;
  return static_cast<int>(min(max(end, int64_t{0}), int64_t{p.kv_len}));
}

__device__ inline KeySource SourceOf(const FlashProblem& p, const TensorView& t, int kv_head) {
  return {static_cast<const uint16_t*>(t.data) + kv_head * t.head_stride,
          t.token_stride,
          t.page_stride,
          p.page_table,
          p.page_shift,
          t.dim,
          t.vectors};
}

template <typename Tile>
__device__ inline void FindWork(const FlashArgs& args, Shared<Tile>& shared) {
  const int32_t* first_cta = args.first_cta != nullptr ? args.first_cta : args.inline_first_cta;
  const FlashGroup* groups = args.groups != nullptr ? args.groups : args.inline_groups;
  const int index = FindGroup(first_cta, args.count, blockIdx.x);
  const FlashGroup& group = groups[index];
  const int4* from = reinterpret_cast<const int4*>(&group.first);
  int4* to = reinterpret_cast<int4*>(&shared.problem);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(FlashProblem) / 16); i += Tile::kThreads) {
    to[i] = from[i];
  }
  __syncthreads();

  const FlashProblem& p = shared.problem;
  const int problem_ctas = p.row_tiles * p.splits * p.kv_heads;
  const int cta = (blockIdx.x - first_cta[index]) % problem_ctas;
  if (group.count > 1) {
    const int i = (blockIdx.x - first_cta[index]) / problem_ctas;
    if (threadIdx.x == 0) TakeProblem(shared.problem, group.distances, i);
    __syncthreads();
  }
  const int rows = p.q_len * p.group;
  CtaWork work;
  // The last rows first: under a causal mask they have the most keys.
  work.row_begin = (p.row_tiles - 1 - cta % p.row_tiles) * Tile::kRows;
  work.split = cta / p.row_tiles % p.splits;
  work.kv_head = cta / p.row_tiles / p.splits;
  if (threadIdx.x < 2) {
    shared.sources[threadIdx.x] = SourceOf(p, threadIdx.x == 0 ? p.k : p.v, work.kv_head);
  }
  for (int i = threadIdx.x; i < Tile::kRows; i += Tile::kThreads) {
    const int row = work.row_begin + i;
    const int token = row < rows ? row / p.group : -1;
    shared.row_token[i] = token;
    shared.row_head[i] = work.kv_head * p.group + row % p.group;
    shared.row_begin[i] = token < 0 ? 0 : FirstKey(p, token);
    shared.row_end[i] = token < 0 ? 0 : LastKeyEnd(p, token);
  }
  const int first = work.row_begin / p.group;
  const int last = (min(work.row_begin + Tile::kRows, rows) - 1) / p.group;
  const int64_t split_begin = p.keys_begin + int64_t{work.split} * p.split_keys;
  work.key_begin = static_cast<int>(max(split_begin, int64_t{FirstKey(p, first)}));
  work.key_end = static_cast<int>(min(split_begin + p.split_keys, int64_t{LastKeyEnd(p, last)}));
  work.full_begin = max(work.key_begin, FirstKey(p, last));
  work.full_end = min(work.key_end, LastKeyEnd(p, first));
  work.first_key = work.key_begin / Tile::kKeys * Tile::kKeys;
  work.key_tiles = max(0, (work.key_end - work.first_key + Tile::kKeys - 1) / Tile::kKeys);
  work.split_row = (int64_t{work.split} * p.kv_heads + work.kv_head) * rows + work.row_begin;
  if (threadIdx.x == 0) shared.work = work;
  __syncthreads();
}

// The weights of this warp's rows and keys as the A operand of the second product: in 16 bits.
template <typename Tile>
using WeightFragments = uint32_t[Tile::kRowTiles][Tile::kWarpKeys / 16][4];

// Halves the registers that the weights take, which they hold while V is waited for.
template <typename T, typename Tile>
__device__ inline void PackWeights(WeightFragments<Tile>& p, const ScoreFragments<Tile>& s) {
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int kk = 0; kk < Tile::kWarpKeys / 16; ++kk) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = &s[rt][2 * kk + i / 2][i % 2 * 2];
        p[rt][kk][i] = Element<T>::Pack(pair[0], pair[1]);
      }
    }
  }
}

// out += p·v for this warp's rows and keys.
template <typename T, typename Tile>
__device__ inline void AccumulateValues(OutFragments<Tile>& out, const WeightFragments<Tile>& p,
                                        const unsigned char* slot, const Lane<Tile>& at) {
  const uint32_t v = SharedAddress(slot);
#pragma unroll
  for (int kk = 0; kk < Tile::kWarpKeys / 16; ++kk) {
    const int key = at.key_warp * Tile::kWarpKeys + kk * 16 + at.lane % 16;
#pragma unroll
    for (int n = 0; n < Tile::kHeadDim / 16; ++n) {
      uint32_t b[4];
      LoadMatrixTransposed(b, v + ChunkOffset<Tile::kHeadDim>(key, n * 2 + at.lane / 16));
#pragma unroll
      for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
        Element<T>::Mma(out[rt][2 * n], p[rt][kk], b[0], b[1]);
        Element<T>::Mma(out[rt][2 * n + 1], p[rt][kk], b[2], b[3]);
      }
    }
  }
}

template <typename Tile>
__device__ inline void ApplySign(ScoreFragments<Tile>& s, float sign) {
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int n = 0; n < Tile::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[rt][n][e] *= sign;
    }
  }
}

// Weights of 1 for what a row sees, 0 for the rest.
template <typename Tile>
__device__ inline void MarkVisible(ScoreFragments<Tile>& s) {
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int n = 0; n < Tile::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[rt][n][e] = s[rt][n][e] == NegativeInfinity() ? 0.0f : 1.0f;
    }
  }
}

// The ring: tile t is K (even t) or V (odd t) of the t / 2-th tile of keys.
template <typename Tile>
__device__ inline unsigned char* Slot(Shared<Tile>& shared, int slot) {
  return shared.ring + slot * Tile::kSlotBytes;
}

// Asks for tile t. Behind the last tile, commits an empty group: waits count groups.
template <typename Tile>
__device__ inline void AskForTile(Shared<Tile>& shared, int t, int slot) {
  const CtaWork& work = shared.work;
  if (t < 2 * work.key_tiles) {
    LoadKeys<Tile>(Slot(shared, slot), shared.sources[t % 2], work.first_key + t / 2 * Tile::kKeys,
                   work.key_begin, work.key_end);
  }
  CommitCopies();
}

// Waits for tile t, in the given slot, and has tile t + kSlots - 1 asked for, into the slot of tile t - 1.
template <typename Tile>
__device__ inline void WaitForTile(Shared<Tile>& shared, int t, int slot) {
  WaitCopies<Tile::kSlots - 2>();
  __syncthreads();
  AskForTile(shared, t + Tile::kSlots - 1, slot == 0 ? Tile::kSlots - 1 : slot - 1);
}

template <typename Tile>
__device__ inline int NextSlot(int slot) {
  return slot + 1 == Tile::kSlots ? 0 : slot + 1;
}

// One pass over the CTA's keys. In the plus and minus passes out becomes the number of visible keys whose V
// is marked, and state is left alone.
template <typename T, typename Tile, bool kFeatures>
__device__ inline void RunPass(OutFragments<Tile>& out, Softmax<Tile>& state, Shared<Tile>& shared, Pass pass,
                               const Lane<Tile>& at) {
  const CtaWork& work = shared.work;
  const FlashProblem& p = shared.problem;
  const bool marks = pass == Pass::kPlus || pass == Pass::kMinus;
  if (!marks) state.Reset();
#pragma unroll
  for (int rt = 0; rt < Tile::kRowTiles; ++rt) {
#pragma unroll
    for (int n = 0; n < Tile::kHeadDim / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[rt][n][e] = 0.0f;
    }
  }
  if (work.key_tiles == 0) return;

  unsigned char* q_shared = Tile::kQueryInRegisters ? Slot(shared, Tile::kSlots - 1) : shared.q;
  if (Tile::kQueryInRegisters || pass == Pass::kPlain) LoadQueries<Tile>(q_shared, shared);
  for (int t = 0; t < Tile::kSlots - 1; ++t) AskForTile(shared, t, t);
  Query<Tile> q;
  if (Tile::kQueryInRegisters) {
    WaitCopies<Tile::kSlots - 2>();
    __syncthreads();
  }
  q.Load(q_shared, at);

  int slot = 0;
  for (int tile = 0; tile < work.key_tiles; ++tile) {
    ScoreFragments<Tile> s;
    WaitForTile(shared, 2 * tile, slot);
    Scores<T, Tile>(s, q, Slot(shared, slot), at);
    slot = NextSlot<Tile>(slot);

    const int key0 = work.first_key + tile * Tile::kKeys;
    if constexpr (kFeatures) {
      Modify<T, Tile>(s, shared, at, key0);
    } else if (p.sign != 1.0f) {
      ApplySign<Tile>(s, p.sign);
    }
    if (key0 < work.full_begin || key0 + Tile::kKeys > work.full_end) MaskRange<Tile>(s, shared, at, key0);
    if (marks) {
      MarkVisible<Tile>(s);
    } else {
      state.Update(s, out, p.unit * kLog2E);
    }
    WeightFragments<Tile> weights;
    PackWeights<T, Tile>(weights, s);

    WaitForTile(shared, 2 * tile + 1, slot);
    if (pass != Pass::kPlain) {
      RewriteValues<T, Tile>(Slot(shared, slot), pass);
      __syncthreads();
    }
    AccumulateValues<T, Tile>(out, weights, Slot(shared, slot), at);
    slot = NextSlot<Tile>(slot);
  }
}

// Where row i of the tile goes.
template <typename O>
__device__ inline OutRow<O> RowOfOut(const FlashProblem& p, int token, int head) {
  return {static_cast<O*>(p.out) + token * p.out_token_stride + head * p.out_head_stride,
          p.lse == nullptr ? nullptr : p.lse + head * p.lse_head_stride + token, p.out_vectors != 0};
}

template <typename T, typename Tile>
__device__ inline bool WriteTile(const Shared<Tile>& shared, Pass pass, bool partial) {
  const FlashProblem& p = shared.problem;
  if (p.splits > 1) {
    const int64_t first = shared.work.split_row;
    return WriteRows<Tile, float>(shared, pass, [&](int row) {
      return OutRow<float>{p.split_out + (first + row) * p.v.dim, nullptr, true};
    });
  }
  if (partial) {
    return WriteRows<Tile, float>(shared, pass, [&](int row) {
      return RowOfOut<float>(p, shared.row_token[row], shared.row_head[row]);
    });
  }
  return WriteRows<Tile, T>(
      shared, pass, [&](int row) { return RowOfOut<T>(p, shared.row_token[row], shared.row_head[row]); });
}

// A pass and its output. Returns whether some thread of the CTA has seen an unexplained NaN.
template <typename T, typename Tile, bool kFeatures>
__device__ inline bool RunAndWrite(Shared<Tile>& shared, Pass pass, bool partial) {
  const Lane<Tile> at;
  OutFragments<Tile> out;
  Softmax<Tile> state;
  RunPass<T, Tile, kFeatures>(out, state, shared, pass, at);

  WaitCopies<0>();
  __syncthreads();  // the ring is free
  float scale[2 * Tile::kRowTiles];
  if (pass == Pass::kPlain || pass == Pass::kFinite) {
    FinishSoftmax<Tile>(state, scale, shared, at);
  } else {
#pragma unroll
    for (int r = 0; r < 2 * Tile::kRowTiles; ++r) scale[r] = state.sum[r] = 1.0f;
  }
  StageOut<Tile>(out, scale, state.sum, shared, at);
  __syncthreads();
  return __syncthreads_or(WriteTile<T, Tile>(shared, pass, partial)) != 0;
}

template <typename T, typename Tile, bool kFeatures>
__global__ void __launch_bounds__(Tile::kThreads, kFeatures ? 2 : Tile::kBlocksPerSm)
    FlashKernel(const __grid_constant__ FlashArgs args) {
  AllowNextLaunch();  // the kernel that combines splits
  extern __shared__ __align__(128) unsigned char raw[];
  Shared<Tile>& shared = *reinterpret_cast<Shared<Tile>*>(raw);
  FindWork<Tile>(args, shared);
  const bool partial = args.partial != 0;
  for (Pass pass = Pass::kPlain;; pass = static_cast<Pass>(static_cast<int>(pass) + 1)) {
    const bool nan = RunAndWrite<T, Tile, kFeatures>(shared, pass, partial);
    if (pass == Pass::kMinus || (pass == Pass::kPlain && !nan)) return;
  }
}

}  // namespace attend::cuda::flash

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM80_KERNEL_CUH_
