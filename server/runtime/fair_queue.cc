#include "server/runtime/fair_queue.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"

namespace attend::server {
namespace {

std::pair<std::pair<double, uint64_t>, Flow*> PlaceOf(Flow* flow) {
  return {{flow->virtual_time, flow->order}, flow};
}

// What a batch holds so far.
struct Held {
  int64_t tokens = 0, host_bytes = 0, device_bytes = 0;
  absl::Duration cost;

  void Add(const Entry& entry, int device) {
    tokens += entry.tokens;
    host_bytes += entry.host_bytes;
    device_bytes += entry.device_bytes[device];
    cost += entry.cost;
  }
  // The bound of kBatchLimits that keeps the entry out; empty where it fits.
  absl::string_view Exceeded(const Entry& entry, const BatchBounds& bounds) const {
    if (tokens + entry.tokens > bounds.tokens) return "tokens";
    if (host_bytes + entry.host_bytes > bounds.host_bytes) return "bytes";
    if (device_bytes + entry.device_bytes[bounds.device] > bounds.device_bytes) return "device_memory";
    if (cost + entry.cost > bounds.cost) return "time";
    return "";
  }
};

}  // namespace

Flow* FairQueue::Activate(const std::string& key) {
  std::unique_ptr<Flow>& flow = flows_[key];
  if (flow == nullptr) {
    flow = std::make_unique<Flow>();
    flow->key = key;
    flow->order = next_order_++;
  } else if (!flow->groups.empty()) {
    return flow.get();
  } else {
    idle_.erase(PlaceOf(flow.get()));
  }
  flow->virtual_time = std::max(flow->virtual_time, virtual_now_);
  active_.insert(PlaceOf(flow.get()));
  return flow.get();
}

void FairQueue::Push(Entry* entry, absl::Time now) {
  Flow* const flow = Activate(entry->job->fair_key);
  entry->flow = flow;
  entry->urgency = std::min(entry->job->deadline, now + kPatience);
  entry->ready = false;
  entry->bypassed = 0;
  flow->groups[entry->group].insert(entry);
  Group& group = groups_[entry->group];
  group.flows.insert(flow);
  ++group.size;
  ++size_;
  Count(*entry, flow, 1);
}

void FairQueue::Unlink(Entry* entry) {
  Flow* const flow = entry->flow;
  const auto of_flow = flow->groups.find(entry->group);
  const auto group = groups_.find(entry->group);
  of_flow->second.erase(entry);
  if (of_flow->second.empty()) {
    flow->groups.erase(of_flow);
    group->second.flows.erase(flow);
  }
  group->second.ready -= entry->ready ? 1 : 0;
  if (--group->second.size == 0) groups_.erase(group);
  entry->flow = nullptr;
  --size_;
  Count(*entry, flow, -1);
}

void FairQueue::Count(const Entry& entry, Flow* flow, int sign) {
  const absl::Duration cost = sign * entry.cost;
  cost_ += cost;
  flow->cost += cost;
  if (entry.group.long_request) return;
  short_cost_ += cost;
  flow->short_cost += cost;
}

absl::Duration FairQueue::CostAhead(const std::string& key, const Entry& entry) const {
  const auto found = flows_.find(key);
  const Flow* const flow = found != flows_.end() ? found->second.get() : nullptr;
  const bool all = entry.group.long_request;
  const absl::Duration own = flow == nullptr ? absl::ZeroDuration() : all ? flow->cost : flow->short_cost;
  const auto others =
      static_cast<int64_t>(active_.size()) - (flow != nullptr && !flow->groups.empty() ? 1 : 0);
  return std::min(all ? cost_ : short_cost_, own + others * (own + entry.cost));
}

void FairQueue::Remove(Entry* entry) {
  Flow* const flow = entry->flow;
  active_.erase(PlaceOf(flow));
  Unlink(entry);
  Place(flow);
  Forget();
}

void FairQueue::SetReady(Entry* entry) {
  if (entry->ready) return;
  entry->ready = true;
  ++groups_[entry->group].ready;
}

void FairQueue::Place(Flow* flow) { (flow->groups.empty() ? idle_ : active_).insert(PlaceOf(flow)); }

void FairQueue::Forget() {
  // With nothing waiting there is more device than work: nobody is owed anything.
  while (!idle_.empty() && (size_ == 0 || idle_.begin()->first.first <= virtual_now_ ||
                            static_cast<int64_t>(idle_.size()) > kIdleFlowsMax)) {
    Flow* const flow = idle_.begin()->second;
    idle_.erase(idle_.begin());
    flows_.erase(flow->key);
  }
  if (size_ == 0) virtual_now_ = 0;
}

const Entry* FairQueue::Next() const {
  const Entry* next = nullptr;
  for (const auto& [key, entries] : active_.begin()->second->groups) {
    if (next == nullptr || MoreUrgent()(*entries.begin(), next)) next = *entries.begin();
  }
  return next;
}

bool FairQueue::GroupMayGo(const GroupKey& key, const BatchBounds& bounds) const {
  if ((key.devices >> bounds.device & 1) == 0) return false;
  if (key.long_request && !bounds.long_allowed) return false;
  if (key.short_request && !bounds.short_allowed) return false;
  if (company_ == 0) return true;
  const Group& group = groups_.find(key)->second;
  return group.ready > 0 || group.size >= company_;
}

Entry* FairQueue::FindLead(const BatchBounds& bounds) {
  std::vector<Entry*> passed;
  for (const auto& [place, flow] : active_) {
    Entry* lead = nullptr;
    for (const auto& [key, entries] : flow->groups) {
      Entry* const entry = *entries.begin();
      if (!GroupMayGo(key, bounds)) continue;
      if (entry->device_bytes[bounds.device] > bounds.device_bytes) {
        if (entry->bypassed >= kBypassMax) return nullptr;
        passed.push_back(entry);
        continue;
      }
      if (lead == nullptr || MoreUrgent()(entry, lead)) lead = entry;
    }
    if (lead != nullptr) {
      for (Entry* entry : passed) ++entry->bypassed;
      return lead;
    }
  }
  return nullptr;
}

std::vector<Entry*> FairQueue::TakeBatch(const BatchBounds& bounds, absl::string_view* limit) {
  std::vector<Entry*> batch;
  Entry* const lead = FindLead(bounds);
  if (lead == nullptr) return batch;
  const GroupKey key = lead->group;
  virtual_now_ = std::max(virtual_now_, lead->flow->virtual_time);

  // The group's flows, the one furthest behind on top. They leave the orders until the batch is whole.
  const auto behind = [](Flow* a, Flow* b) { return PlaceOf(a) > PlaceOf(b); };
  const absl::flat_hash_set<Flow*>& members = groups_.find(key)->second.flows;
  absl::InlinedVector<Flow*, 16> heap(members.begin(), members.end());
  std::make_heap(heap.begin(), heap.end(), behind);
  absl::InlinedVector<Flow*, 16> touched;
  const auto take = [&](Entry* entry) {
    Flow* const flow = entry->flow;
    if (std::find(touched.begin(), touched.end(), flow) == touched.end()) {
      active_.erase(PlaceOf(flow));
      touched.push_back(flow);
    }
    Unlink(entry);
    flow->virtual_time += absl::ToDoubleSeconds(entry->cost);
    batch.push_back(entry);
  };

  Held held;
  absl::string_view limited;
  Entry* next = lead;
  while (next != nullptr) {
    held.Add(*next, bounds.device);
    Flow* const flow = next->flow;
    take(next);
    next = nullptr;
    if (static_cast<int64_t>(batch.size()) >= bounds.requests) {
      if (groups_.contains(key)) limited = "requests";
      break;
    }
    if (batch.size() == 1) {
      // The lead's flow has moved: sort anew.
      if (!flow->groups.contains(key)) heap.erase(std::remove(heap.begin(), heap.end(), flow), heap.end());
      std::make_heap(heap.begin(), heap.end(), behind);
    } else if (flow->groups.contains(key)) {
      heap.push_back(flow);
      std::push_heap(heap.begin(), heap.end(), behind);
    }
    while (!heap.empty() && next == nullptr) {
      std::pop_heap(heap.begin(), heap.end(), behind);
      Flow* const candidate = heap.back();
      heap.pop_back();
      Entry* const entry = *candidate->groups.find(key)->second.begin();
      // A flow whose next does not fit waits for the next batch: no overtaking.
      const absl::string_view exceeded = held.Exceeded(*entry, bounds);
      if (exceeded.empty()) {
        next = entry;
      } else {
        limited = exceeded;
      }
    }
  }
  if (limit != nullptr && !limited.empty()) *limit = limited;
  for (Flow* flow : touched) Place(flow);
  Forget();
  return batch;
}

}  // namespace attend::server
