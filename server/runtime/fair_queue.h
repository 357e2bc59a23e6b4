// The order of what waits: fair shares between callers, urgency within a caller, batches of one group.
//
// Fair queuing by virtual time (Demers, Keshav and Shenker 1989, start-time variant of Goyal et al. 1996):
// each fair key is a flow whose virtual time advances by the cost of what it gets; the flow that is
// furthest behind goes next. A flow that was idle starts at the present, so that nobody saves up; a flow
// that leaves while ahead is remembered until the others have caught up, so that nobody sheds his debt by
// leaving. What is remembered is bounded.
//
// Within a flow the most urgent goes first: by deadline, and what has none, or a far one, counts as due
// kPatience after it came, so that it does not wait for ever behind others' nearer deadlines.
//
// Operations are O(log n), taking a batch O(flows of its group + batch * log n). Not thread-safe.
#ifndef ATTEND_SERVER_RUNTIME_FAIR_QUEUE_H_
#define ATTEND_SERVER_RUNTIME_FAIR_QUEUE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/runtime/entry.h"

namespace attend::server {

struct MoreUrgent {
  bool operator()(const Entry* a, const Entry* b) const {
    return std::pair(a->urgency, a->id) < std::pair(b->urgency, b->id);
  }
};

// What waits (or is owed) under one fair key.
struct Flow {
  std::string key;
  uint64_t order = 0;                                       // breaks ties of virtual time: who came first
  double virtual_time = 0;                                  // seconds of device time
  absl::Duration cost, short_cost;                          // of its entries; of those that are not long
  std::map<GroupKey, std::set<Entry*, MoreUrgent>> groups;  // none empty
};

// What the next batch may hold. The first entry is taken even if it exceeds the bounds by itself, all but
// the device's memory.
struct BatchBounds {
  int device = 0;
  bool long_allowed = true;
  bool short_allowed = true;
  int64_t device_bytes = 0;  // free on the device
  int64_t requests = 1;
  int64_t tokens = 0;
  int64_t host_bytes = 0;
  absl::Duration cost;
};

class FairQueue {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(10);
  static constexpr int64_t kBypassMax = 16;
  static constexpr int64_t kIdleFlowsMax = 4096;

  // company: a group is taken only once one of its entries is ready or it has this many; 0: always.
  explicit FairQueue(int64_t company = 0) : company_(company) {}

  // entry->job is set, and gives fair_key and deadline; now is when it came.
  void Push(Entry* entry, absl::Time now);
  // Of an entry that waits here.
  void Remove(Entry* entry);
  // Marks an entry that has waited for company long enough.
  void SetReady(Entry* entry);

  // Takes entries of one group, the lead first: that of the flow that is furthest behind and whose entry
  // the device can take. limit, where not null, gets the bound of kBatchLimits that kept another request out,
  // and stays as it is where none did. Empty where none can go. A lead that lacks only device memory lets
  // others pass kBypassMax times; then the device waits for it.
  std::vector<Entry*> TakeBatch(const BatchBounds& bounds, absl::string_view* limit = nullptr);

  // The most urgent entry of the flow that is furthest behind; there is one.
  const Entry* Next() const;
  int64_t size() const { return size_; }
  absl::Duration cost() const { return cost_; }  // of all that waits
  // About what is served before this entry, if it came now: all that waits, but of other flows no more than
  // they get while this one's own entries are served, and for a short one nothing long: those run beside it.
  absl::Duration CostAhead(const std::string& key, const Entry& entry) const;
  int64_t remembered_flows() const { return static_cast<int64_t>(flows_.size()); }

 private:
  struct Group {
    absl::flat_hash_set<Flow*> flows;  // that have entries in it
    int64_t size = 0;
    int64_t ready = 0;
  };
  using FlowOrder = std::set<std::pair<std::pair<double, uint64_t>, Flow*>>;

  Flow* Activate(const std::string& key);
  // The lead of the next batch, or null.
  Entry* FindLead(const BatchBounds& bounds);
  bool GroupMayGo(const GroupKey& key, const BatchBounds& bounds) const;
  // Adds an entry's cost to the sums (sign 1), or takes it away (-1).
  void Count(const Entry& entry, Flow* flow, int sign);
  // Unlinks the entry from flow and group; leaves the flow where it is in the orders.
  void Unlink(Entry* entry);
  // Puts a flow, whose place in the orders was given up, back where it now belongs.
  void Place(Flow* flow);
  void Forget();

  const int64_t company_;
  int64_t size_ = 0;
  absl::Duration cost_, short_cost_;
  double virtual_now_ = 0;  // where the flow served last stood
  uint64_t next_order_ = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<Flow>> flows_;
  FlowOrder active_;  // flows with entries
  FlowOrder idle_;    // flows without, ahead of virtual_now_
  std::map<GroupKey, Group> groups_;
};

}  // namespace attend::server

#endif  // ATTEND_SERVER_RUNTIME_FAIR_QUEUE_H_
