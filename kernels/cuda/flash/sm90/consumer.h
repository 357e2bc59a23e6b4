// A consumer warpgroup: 64 query rows of each work item.
//
// The products of two neighbouring tiles are in flight together: S' = Q·K' of the next tile and O += P·V of
// this one; the softmax of S' runs while P·V does (as in FlashAttention-3, arXiv:2407.08608). The
// warpgroups pass a token so that one's softmax runs under the other's products.
#ifndef ATTEND_KERNELS_CUDA_FLASH_SM90_CONSUMER_H_
#define ATTEND_KERNELS_CUDA_FLASH_SM90_CONSUMER_H_

#include <cstdint>

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
    while (true) {
      BarrierWait(&shared_.q_full[query_.stage()][warpgroup_], query_.phase());
      const Item item = Uniform(shared_.item[query_.stage()][warpgroup_]);
      if (item.group < 0) {
        ReleaseQuery();
        return item.group == kEndOfWork;
      }
      Run(item, careful);
    }
  }

 private:
  static constexpr int kScores = T::kKeys / 2;  // per thread
  static constexpr int kOutputs = T::kHeadDim / 2;

  // The same in all lanes, and known to be: it can live in uniform registers.
  __device__ static Item Uniform(Item item) {
    item.group = __shfl_sync(0xffffffffu, item.group, 0);
    item.slot = __shfl_sync(0xffffffffu, item.slot, 0);
    item.batch = __shfl_sync(0xffffffffu, item.batch, 0);
    item.head = __shfl_sync(0xffffffffu, item.head, 0);
    item.row_begin = __shfl_sync(0xffffffffu, item.row_begin, 0);
    item.tile_begin = __shfl_sync(0xffffffffu, item.tile_begin, 0);
    item.tile_end = __shfl_sync(0xffffffffu, item.tile_end, 0);
    return item;
  }

  __device__ void Run(const Item& item, bool careful) {
    const Group& g = GroupAt(params_, item.group);
    const int row = item.row_begin + row_of_thread_;
    float o[kOutputs];
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) o[i] = 0.0f;
    RowState state;
    const float c = T::kModified ? 1.0f : g.scale * kLog2E;  // scores to exponents of 2
    if (item.tile_end > item.tile_begin) {
      Walk(g, item, row, c, careful, o, state);
    } else {
      ReleaseQuery();
    }
    StoreItem<T>(params_.shape, g, item.batch, item.head, row, o, state, c, lane_);
  }

  __device__ void Walk(const Group& g, const Item& item, int row, float c, bool careful, float (&o)[kOutputs],
                       RowState& state) {
    const WholeTiles whole =
        WholeTilesOfRows(g, item.row_begin, item.row_begin + kWarpgroupRows - 1, T::kKeys);
    float slope = 0.0f;
    if constexpr (T::kModified) {
      if (g.alibi_slopes != nullptr)
        slope = __ldg(g.alibi_slopes + item.batch * g.alibi_batch_stride + item.head);
    }
    float s[kScores];
    uint32_t p[kScores / 2];
    float correction[2];

    int n = item.tile_end - 1;
    BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    IssueScores(s);
    WgmmaWait<0>();
    PinRegisters(s);
    Release(shared_.k_empty, key_);
    PrepareScores(s, g, slope, row, n, whole);
    SoftmaxTile<true>(s, state, c, careful, correction);
    PackWeights<typename T::Element>(s, p);

    if (n > item.tile_begin) BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    while (n > item.tile_begin) {
      // Tiles that all rows see whole, nearly all, have a loop of their own: it must be short.
      for (; n > item.tile_begin && whole.Has(n - 1) && !careful; --n) {
        Step<false>(g, item, slope, row, n, whole, c, false, s, p, o, state);
      }
      if (n > item.tile_begin) {
        Step<true>(g, item, slope, row, n, whole, c, careful, s, p, o, state);
        --n;
      }
    }
    ReleaseQuery();
    if (careful) TendValues(g, item, row, n, o);
    BarrierWait(&shared_.v_full[value_.stage()], value_.phase());
    IssueOutput(o, p);
    WgmmaWait<0>();
    PinRegisters(o);
    Release(shared_.v_empty, value_);
    if (!careful) AskForCare(g, item.slot, row, c, o, state);
  }

  // The scores and weights of tile n - 1, and the output of tile n, whose weights are p.
  template <bool kMasked>
  __device__ __forceinline__ void Step(const Group& g, const Item& item, float slope, int row, int n,
                                       WholeTiles whole, float c, bool careful, float (&s)[kScores],
                                       uint32_t (&p)[kScores / 2], float (&o)[kOutputs], RowState& state) {
    if (kMasked && careful) TendValues(g, item, row, n, o);
    AwaitTurn();
    IssueScores(s);
    BarrierWait(&shared_.v_full[value_.stage()], value_.phase());
    IssueOutput(o, p);
    PassTurn();
    WgmmaWait<1>();
    PinRegisters(s);
    Release(shared_.k_empty, key_);
    if constexpr (T::kModified || kMasked) PrepareScores(s, g, slope, row, n - 1, whole);
    float correction[2];
    const bool rescale = SoftmaxTile<false>(s, state, c, kMasked && careful, correction);
    PinRegisters(s);
    // Here, because the branch keeps the assembler from moving the exponentials behind the wait for P·V:
    // they belong under it.
    if (n - 1 > item.tile_begin) BarrierWait(&shared_.k_full[key_.stage()], key_.phase());
    WgmmaWait<0>();
    PinRegisters(o);
    Release(shared_.v_empty, value_);
    PackWeights<typename T::Element>(s, p);
    if (rescale) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) o[i] *= correction[(i / 2) % 2];
    }
  }

  // S = Q·Kᵀ of the key ring's stage.
  __device__ void IssueScores(float (&s)[kScores]) {
    using KMajor = Operand<16, 8 * T::kRowBytes, T::kSwizzle>;
    const KMajor q(shared_.q[query_.stage()][warpgroup_]);
    const KMajor k(shared_.k[key_.stage()]);
    PinRegisters(s);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < T::kHeadDim / 16; ++i) {
      const int block = i * 16 / T::kBlockColumns;
      const int bytes = i * 16 % T::kBlockColumns * 2;
      WgmmaShared<typename T::Element, T::kKeys>(s, q.At(block * T::kQueryBlockBytes + bytes),
                                                 k.At(block * T::kKeyBlockBytes + bytes), i != 0);
    }
    WgmmaCommit();
  }

  // O += P·V of the value ring's stage.
  __device__ void IssueOutput(float (&o)[kOutputs], const uint32_t (&p)[kScores / 2]) {
    const Operand<T::kKeyBlockBytes, 8 * T::kRowBytes, T::kSwizzle> v(shared_.v[value_.stage()]);
    PinRegisters(o);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < T::kKeys / 16; ++i) {
      WgmmaRegister<typename T::Element, T::kHeadDim>(o, p + 4 * i, v.At(i * 16 * T::kRowBytes), 1);
    }
    WgmmaCommit();
  }

  __device__ void PrepareScores(float (&s)[kScores], const Group& g, float slope, int row, int n,
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
    if (row < g.q_len && (large || AnyNotFinite(o))) atomicOr(&shared_.redo[slot / 32], 1u << slot % 32);
  }

  __device__ void AwaitTurn() { NamedBarrierSync(kTurnBarrier + warpgroup_, 2 * kWarpgroupThreads); }
  __device__ void PassTurn() {
    NamedBarrierArrive(kTurnBarrier + (warpgroup_ + 1) % T::kConsumers, 2 * kWarpgroupThreads);
  }

  __device__ void Release(Barrier* empty, RingPosition<T::kStages>& position) {
    if (lane_ == 0) BarrierArrive(&empty[position.stage()]);
    position.Next();
  }
  __device__ void ReleaseQuery() {
    if (lane_ == 0) BarrierArrive(&shared_.q_empty[query_.stage()][warpgroup_]);
    query_.Next();
  }

  const Params<kGroups>& params_;
  SharedPlan<T>& shared_;
  const int warpgroup_, thread_, lane_, row_of_thread_;
  RingPosition<T::kQueryStages> query_;
  RingPosition<T::kStages> key_, value_;
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FLASH_SM90_CONSUMER_H_
