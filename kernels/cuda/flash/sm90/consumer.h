// A consumer warpgroup: 64 query rows of each work item.
//
// The products of two neighbouring tiles are in flight together: S' = Q·K' of the next tile and O += P·V of
// this one; the softmax of S' runs while P·V does (as in FlashAttention-3, arXiv:2407.08608). The
// warpgroups pass a token so that one's softmax runs under the other's products.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_CONSUMER_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_CONSUMER_H_

#include <cstdint>
#include <cstring>

#include "kernels/cuda/flash/sm90/epilogue.h"
#include "kernels/cuda/flash/sm90/params.h"
#include "kernels/cuda/flash/sm90/producer.h"
#include "kernels/cuda/flash/sm90/ptx.h"
#include "kernels/cuda/flash/sm90/scores.h"
#include "kernels/cuda/flash/sm90/softmax.h"
#include "kernels/cuda/flash/sm90/traits.h"
#include "kernels/cuda/flash/sm90/wgmma.h"

namespace attend::cuda::sm90 {

template <typename T, int kGroups>
class Consumer {
 public:
  __device__ Consumer(const Params<kGroups>& params, SharedPlan<T>& shared, int warpgroup)
      : params_(params),
        shared_(shared),
        warpgroup_(warpgroup),
        thread_(threadIdx.x % kWarpgroupThreads),
        lane_(threadIdx.x % 32),
        row_of_thread_(thread_ / 32 * 16 + lane_ / 4) {
    // The first warpgroup's first turn, which it takes back in Finish.
    if (warpgroup_ == T::kConsumers - 1) PassTurn();
  }

  // After the last chunk: leaves no named barrier half full.
  __device__ void Finish() {
    if (warpgroup_ == 0) AwaitTurn();
  }

  // Walks a chunk, or its items that need care. Returns whether it was the last chunk.
  __device__ bool Chunk(bool careful) {
    float s[kScores];
    Item item = Begin(s);
    while (item.group >= 0) item = Run(item, careful, s);
    WgmmaWait<0>();
    PinRegisters(s);
    ReleaseQuery();
    return item.group == kEndOfWork;
  }

 private:
  static constexpr int kScores = T::kKeys / 2;  // per thread
  static constexpr int kOutputs = T::kHeadDim / 2;

  // An item from shared memory, the same in all lanes, and known to be: it can live in uniform registers.
  // Read by the lane alone that will give its place back.
  __device__ Item Uniform(const Item& item) const {
    int32_t words[sizeof(Item) / sizeof(int32_t)] = {};
    if (lane_ == 0) memcpy(words, &item, sizeof(item));
#pragma unroll
    for (int32_t& word : words) word = __shfl_sync(0xffffffffu, word, 0);
    Item uniform;
    memcpy(&uniform, words, sizeof(uniform));
    return uniform;
  }

  // Waits for the next item, or word that there is none, and issues its first scores: before the loop over
  // items comes round, because so built head_dim 256 does not spill. Where there are none, those of whatever
  // lies in shared memory, which nobody looks at: with products on one branch alone ptxas serialized them all
  // (C7515). First scores take their turn too, so that the softmax of one warpgroup runs under those of the
  // next; but not where warpgroups leave out tiles, whose turns are counted from the second on.
  __device__ __forceinline__ Item Begin(float (&s)[kScores]) {
    BarrierWait(&shared_.q_full[query_.stage()][warpgroup_], query_.phase());
    const Item item = Uniform(shared_.item[query_.stage()][warpgroup_]);
    const bool has_scores = item.group >= 0 && item.tile_end > item.tile_begin;
    if (has_scores) {
      if (T::kSkips && item.tiles_before > 0) SkipKeys();
      BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    }
    const KMajor q = QueryOperand();
    const KMajor k = KeyOperand();
    if (!T::kSkips && has_scores) AwaitTurn();
    IssueScores(s, q, k);
    if (!T::kSkips && has_scores) PassTurn();
    return item;
  }

  // Walks an item whose first scores are in flight, and begins the next, which it returns.
  __device__ __forceinline__ Item Run(const Item& item, bool careful, float (&s)[kScores]) {
    const Group& g = GroupAt(params_, item.group);
    const int row = item.row_begin + row_of_thread_;
    float o[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.0f;
    RowState state;
    const float c = T::kModified ? 1.0f : g.scale * kLog2E;  // scores to exponents of 2
    if (item.tile_end == item.tile_begin) {
      WgmmaWait<0>();
      PinRegisters(s);
      if constexpr (T::kSkips) SkipTiles(item.tiles_before);
      if constexpr (!T::kStaged) ReleaseQuery();
      Store(g, item, row, c, o, state);
      return Begin(s);
    }
    Walk(g, item, row, c, careful, s, o, state);
    Store(g, item, row, c, o, state);
    return Begin(s);
  }

  __device__ __forceinline__ void Store(const Group& g, const Item& item, int row, float c,
                                        const float (&o)[kOutputs], const RowState& state) {
    StoreItem<T>(params_.shape, g, item.batch, item.head, row, o, state, c,
                 shared_.q[query_.stage()][warpgroup_], thread_);
    if constexpr (T::kStaged) ReleaseQuery();
  }

  // Takes part in the barriers of `count` tiles that no row of this warpgroup sees, all of an item, in the
  // order in which Walk does: an order of its own could leave two warpgroups waiting for each other.
  __device__ void SkipTiles(int count) {
    if (count == 0) return;
    SkipKeys();
    for (int i = 1; i < count; ++i) {
      SkipTurn();
      SkipKeys();
      SkipValues();
    }
    SkipValues();
  }
  __device__ void SkipKeys() {
    BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    Release(shared_.k_empty, key_);
  }
  __device__ void SkipValues() {
    BarrierWait(&shared_.v_full[value_.stage()], value_.phase());
    Release(shared_.v_empty, value_);
  }
  __device__ void SkipTurn() {
    AwaitTurn();
    PassTurn();
  }

  // s: the item's first scores.
  __device__ __forceinline__ void Walk(const Group& g, const Item& item, int row, float c, bool careful,
                                       float (&s)[kScores], float (&o)[kOutputs], RowState& state) {
    // So that at most one tile of the other warpgroups comes before this one's own, and at most one behind.
    static_assert((T::kConsumers - 1) * kWarpgroupRows <= T::kKeys);
    const WholeTiles whole =
        WholeTilesOfRows(g, item.row_begin, item.row_begin + kWarpgroupRows - 1, T::kKeys);
    float slope = 0.0f;
    if constexpr (T::kModified) {
      if (g.alibi_slopes != nullptr)
        slope = __ldg(g.alibi_slopes + item.batch * g.alibi_batch_stride + item.head);
    }
    uint32_t p[kScores / 2];

    const int begin = item.tile_begin;
    int n = item.tile_end - 1;
    const bool before = T::kSkips && item.tiles_before > 0;
    // Whether all rows have seen a key behind the first tile: then their maxima serve for other tiles too,
    // nearly always.
    bool settled = AllSeeKeys(g, item.row_begin, n) && !careful;
    // All of the above while the first scores are formed.
    WgmmaWait<0>();
    PinRegisters(s);
    Release(shared_.k_empty, key_);
    if constexpr (T::kFewKeys > 0) {
      if (item.few_keys) {
        FirstTile(reinterpret_cast<float(&)[T::kFewKeys / 2]>(s), g, slope, row, n, whole, c, careful, p,
                  state);
#pragma unroll
        for (int i = T::kFewKeys / 4; i < kScores / 2; ++i) p[i] = 0;
      } else {
        FirstTile(s, g, slope, row, n, whole, c, careful, p, state);
      }
    } else {
      FirstTile(s, g, slope, row, n, whole, c, careful, p, state);
    }
    if (before) {
      SkipTurn();
      SkipValues();
    }

    if (n > begin) BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    while (n > begin) {
      if (settled && whole.Has(n - 1)) {
        WalkWhole(g, begin, slope, row, n, whole, c, s, p, o, state);
      } else {
        Step(g, item, begin, slope, row, n, whole, c, careful, s, p, o, state);
        --n;
        settled = settled || (AllSeeKeys(g, item.row_begin, n) && !careful);
      }
    }
    if constexpr (!T::kStaged) ReleaseQuery();
    if (T::kSkips && item.tile_after) {
      SkipTurn();
      SkipKeys();
    }
    if (careful) TendValues(g, item, row, n, o);
    BarrierWait(&shared_.v_full[value_.stage()], value_.phase());
    IssueOutput(o, p, ValueOperand());
    WgmmaWait<0>();
    PinRegisters(o);
    Release(shared_.v_empty, value_);
    if (T::kSkips && item.tile_after) SkipValues();
    if (!careful) AskForCare(g, item.slot, row, c, o, state);
  }

  // Whether each of the warpgroup's rows sees a key of tile n.
  __device__ static bool AllSeeKeys(const Group& g, int first_row, int n) {
    return KeysOfRow(g, first_row).high > n * T::kKeys &&
           KeysOfRow(g, first_row + kWarpgroupRows - 1).low < (n + 1) * T::kKeys;
  }

  // The weights of an item's last tile, n, with which the walk begins, or of that tile's first kFewKeys keys
  // where the rows see no others.
  template <int kCount>
  __device__ __forceinline__ void FirstTile(float (&s)[kCount], const Group& g, float slope, int row, int n,
                                            WholeTiles whole, float c, bool careful,
                                            uint32_t (&p)[kScores / 2], RowState& state) {
    PrepareScores(s, g, slope, row, n, whole);
    float correction[2];
    SoftmaxTile<true>(s, state, c, careful, correction);
    PackWeights<typename T::Element>(s, reinterpret_cast<uint32_t(&)[kCount / 2]>(p));
  }

  // The scores and weights of tile n - 1, and the output of tile n, whose weights are p.
  __device__ __forceinline__ void Step(const Group& g, const Item& item, int begin, float slope, int row,
                                       int n, WholeTiles whole, float c, bool careful, float (&s)[kScores],
                                       uint32_t (&p)[kScores / 2], float (&o)[kOutputs], RowState& state) {
    if (careful) TendValues(g, item, row, n, o);
    IssueProducts(s, p, o);
    PrepareScores(s, g, slope, row, n - 1, whole);
    float correction[2];
    const bool rescale = SoftmaxTile<false>(s, state, c, careful, correction);
    PinRegisters(s);
    // Here, because the branch keeps the assembler from moving the exponentials behind the wait for P·V:
    // they belong under it.
    if (n - 1 > begin) BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    WgmmaWait<0>();
    PinRegisters(o);
    Release(shared_.v_empty, value_);
    PackWeights<typename T::Element>(s, p);
    if (rescale) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) o[i] *= correction[(i / 2) % 2];
    }
  }

  // Step for tiles that all rows see whole, nearly all, down to the first that is not: the loop must be
  // short. n: on return, the tile whose weights are p.
  __device__ __forceinline__ void WalkWhole(const Group& g, int begin, float slope, int row, int& n,
                                            WholeTiles whole, float c, float (&s)[kScores],
                                            uint32_t (&p)[kScores / 2], float (&o)[kOutputs],
                                            RowState& state) {
    // A row whose scores so far are all -inf has no maximum that could serve: the careful pass sees to it.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!(state.max[r] > -INFINITY)) state.sum[r] = NAN;
    }
    float offset[2] = {state.Offset(0, c), state.Offset(1, c)};
    const int end = max(begin, whole.begin);
    const bool more = end > begin;  // tiles of keys follow
    if constexpr (!T::kTwoWeights) {
      for (; n > end; --n) {
        IssueProducts(s, p, o);
        if constexpr (T::kModified) PrepareScores(s, g, slope, row, n - 1, whole);
        const bool excess = WeighTile(s, state, c, offset);
        PinRegisters(s);
        if (more || n - 1 > end) BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
        WgmmaWait<0>();
        PinRegisters(o);
        Release(shared_.v_empty, value_);
        if (excess) ShiftOffset(s, o, state, c, offset);
        PackWeights<typename T::Element>(s, p);
      }
    } else {
      // P·V stays in flight while the next scores are issued, so that weights take turns in two places.
      uint32_t other[kScores / 2];
      bool swapped = false;
      bool first = true;
      while (true) {
        StepAhead(n - 1 > end || more, first, c, s, p, other, o, state, offset);
        first = false;
        if (--n == end) {
          swapped = true;
          break;
        }
        StepAhead(n - 1 > end || more, first, c, s, other, p, o, state, offset);
        if (--n == end) break;
      }
      WgmmaWait<0>();
      PinRegisters(o);
      Release(shared_.v_empty, value_);
      if (swapped) {
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) p[i] = other[i];
      }
    }
  }

  // Step of WalkWhole where registers hold two tiles' weights: takes those of the tile before (p), leaves the
  // new ones in next. O += P·V is still in flight on return, and reads p and the value stage until the next
  // step's wait. more: tiles of keys follow; first: no products are in flight yet.
  __device__ __forceinline__ void StepAhead(bool more, bool first, float c, float (&s)[kScores],
                                            const uint32_t (&p)[kScores / 2], uint32_t (&next)[kScores / 2],
                                            float (&o)[kOutputs], RowState& state, float (&offset)[2]) {
    const KMajor q = QueryOperand();
    const KMajor k = KeyOperand();
    RingPosition<T::kValueStages> value = value_;
    if (!first) value.Next();  // the stage at value_ is still being read
    const MnMajor v(shared_.v[value.stage()]);
    AwaitTurn();
    IssueScores(s, q, k);
    BarrierWait(&shared_.v_full[value.stage()], value.phase());
    IssueOutput(o, p, v);
    PassTurn();
    WgmmaWait<1>();
    PinRegisters(s);
    Release(shared_.k_empty, key_);
    if (!first) Release(shared_.v_empty, value_);
    const bool excess = WeighTile(s, state, c, offset);
    PackWeights<typename T::Element>(s, next);
    PinWeights(next);
    if (more) BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    if (excess) {
      WgmmaWait<0>();
      PinRegisters(o);
      ShiftOffset(s, o, state, c, offset);
      PackWeights<typename T::Element>(s, next);
    }
  }

  // In this warpgroup's turn: S of the next tile, whose keys are there, and O += P·V. Returns with the
  // scores.
  __device__ __forceinline__ void IssueProducts(float (&s)[kScores], const uint32_t (&p)[kScores / 2],
                                                float (&o)[kOutputs]) {
    // Before the turn: the other warpgroups wait for its end.
    const KMajor q = QueryOperand();
    const KMajor k = KeyOperand();
    const MnMajor v = ValueOperand();
    AwaitTurn();
    IssueScores(s, q, k);
    BarrierWait(&shared_.v_full[value_.stage()], value_.phase());
    IssueOutput(o, p, v);
    PassTurn();
    WgmmaWait<1>();
    PinRegisters(s);
    Release(shared_.k_empty, key_);
  }

  using KMajor = Operand<16, 8 * T::kRowBytes, T::kSwizzle>;
  using MnMajor = Operand<T::kKeyBlockBytes, 8 * T::kRowBytes, T::kSwizzle>;
  __device__ KMajor QueryOperand() const { return KMajor(shared_.q[query_.stage()][warpgroup_]); }
  __device__ KMajor KeyOperand() const { return KMajor(shared_.k[key_.stage()]); }
  __device__ MnMajor ValueOperand() const { return MnMajor(shared_.v[value_.stage()]); }

  // S = Q·Kᵀ of the key ring's stage.
  template <int kCount>
  __device__ void IssueScores(float (&s)[kCount], KMajor q, KMajor k) {
    PinRegisters(s);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < T::kHeadDim / 16; ++i) {
      const int block = i * 16 / T::kBlockColumns;
      const int bytes = i * 16 % T::kBlockColumns * 2;
      WgmmaShared<typename T::Element, 2 * kCount>(s, q.At(block * T::kQueryBlockBytes + bytes),
                                                   k.At(block * T::kKeyBlockBytes + bytes), i != 0);
    }
    WgmmaCommit();
  }

  // O += P·V of the value ring's stage.
  __device__ void IssueOutput(float (&o)[kOutputs], const uint32_t (&p)[kScores / 2], MnMajor v) {
    PinRegisters(o);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < T::kKeys / 16; ++i) {
      WgmmaRegister<typename T::Element, T::kHeadDim>(o, p + 4 * i, v.At(i * 16 * T::kRowBytes), 1);
    }
    WgmmaCommit();
  }

  template <int kCount>
  __device__ void PrepareScores(float (&s)[kCount], const Group& g, float slope, int row, int n,
                                WholeTiles whole) {
    const int first_key = n * T::kKeys + 2 * (lane_ % 4);
    if constexpr (T::kModified) ModifyTile(s, g, slope, row, first_key);
    if (n < whole.begin) {
      HideKeys<true>(s, g, row, first_key);
    } else if (n >= whole.end) {
      HideKeys<false>(s, g, row, first_key);
    }
  }

  // Careful pass, before the values of tile n are used: where some row of the item sees the tile in part, a
  // weight of zero must not meet a value that is not finite.
  __device__ void TendValues(const Group& g, const Item& item, int row, int n, float (&o)[kOutputs]) {
    const int first_row = item.row_begin - warpgroup_ * kWarpgroupRows;
    if (WholeTilesOfRows(g, first_row, first_row + T::kRows - 1, T::kKeys).Has(n)) return;
    BarrierWait(&shared_.v_full[value_.stage()], value_.phase());
    uint8_t* v = shared_.v[value_.stage()];
    constexpr int kThreads = T::kConsumers * kWarpgroupThreads;
    AddNotFinite<T>(o, v, g, row, n * T::kKeys, lane_);
    NamedBarrierSync(kConsumerBarrier, kThreads);
    ZeroNotFinite<T>(v, warpgroup_ * kWarpgroupThreads + thread_, kThreads);
    SharedWritesToAsyncProxy();
    NamedBarrierSync(kConsumerBarrier, kThreads);
  }

  // Asks for the careful pass where this one cannot be trusted.
  __device__ void AskForCare(const Group& g, int slot, int row, float c, const float (&o)[kOutputs],
                             const RowState& state) {
    const bool large = fmaxf(fabsf(state.Offset(0, c)), fabsf(state.Offset(1, c))) > kOffsetMax;
    const bool finite = state.sum[0] + state.sum[1] < INFINITY;
    if (row < g.q_len && (large || !finite || AnyNotFinite(o)))
      atomicOr(&shared_.redo[slot / 32], 1u << slot % 32);
  }

  __device__ void AwaitTurn() {
    if constexpr (T::kConsumers > 1) NamedBarrierSync(kTurnBarrier + warpgroup_, 2 * kWarpgroupThreads);
  }
  __device__ void PassTurn() {
    if constexpr (T::kConsumers > 1) {
      NamedBarrierArrive(kTurnBarrier + (warpgroup_ + 1) % T::kConsumers, 2 * kWarpgroupThreads);
    }
  }

  template <int kStages>
  __device__ void Release(Barrier* empty, RingPosition<kStages>& position) {
    ArriveByWarp(&empty[position.stage()]);
    position.Next();
  }
  __device__ void ReleaseQuery() {
    ArriveByWarp(&shared_.q_empty[query_.stage()][warpgroup_]);
    query_.Next();
  }

  const Params<kGroups>& params_;
  SharedPlan<T>& shared_;
  const int warpgroup_, thread_, lane_, row_of_thread_;
  RingPosition<T::kQueryStages> query_;
  RingPosition<T::kKeyStages> key_;
  RingPosition<T::kValueStages> value_;
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_CONSUMER_H_
