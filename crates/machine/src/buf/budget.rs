//! Decides what may be taken of a pool, by whom, and who waits for it: the part of the pool behind its lock.
//!
//! The budget is divided into shares: the whole pool is one, and every other share is a part of its parent. What is
//! taken counts in a share and in all its ancestors. A request that exceeds one of them is parked at that share, and
//! requests are served in order of arrival: the first one parked at a share reserves what becomes free there, so small
//! requests do not starve a large one. A request that waits for its own share does not hold up others elsewhere.
//!
//! Small requests ([`SMALL_BYTES`]) that fit into what is free pass a large one, because the memory that it lacks may
//! stay in use for long. Together they pass it with at most [`PASSES`] times its own size. Afterwards everything that
//! becomes free is its own.
//!
//! A share may be divided fairly: no part of it holds more than is still free of it, as switches divide the memory of
//! their ports ("dynamic thresholds", Choudhury and Hahne). A request that exceeds that limit waits for its own share,
//! and memory that becomes free goes to the part that holds least: a part that holds much never delays one that holds
//! little, however large the latter's requests are.
//!
//! One share may have a reserve: a part of the whole pool that no other share uses, whether it is in use or not.
//! Requests within the reserve do not queue behind those that wait for the whole pool.

use std::collections::{BTreeMap, BTreeSet};
use std::task::Waker;

use super::MIN_BUF;
use super::arena::{Arena, Piece};
use super::cache::Caches;

/// The whole pool.
pub(super) const ROOT: usize = 0;
/// After every waiting request.
const LAST: u64 = u64::MAX;
/// The longest request that passes larger ones: room for small messages, or for a WRITE of 64 KiB.
const SMALL_BYTES: usize = 128 << 10;
/// How often small requests may take the size of the request that they pass, before it reserves what becomes free.
const PASSES: usize = 4;

struct Share {
    limit_bytes: usize,
    /// Taken by this share and its descendants. `in_use_bytes <= limit_bytes`
    in_use_bytes: usize,
    /// Total given back since the share was made.
    given_back_bytes: u64,
    /// The share that this one is a part of. None for the whole pool.
    parent: Option<usize>,
    /// References to the share: one for its handles, one for each child.
    holders: usize,
    /// Requests that wait for this share, oldest first. The first of them does not fit into it (or, for the whole pool,
    /// the system has no memory for a slab).
    waiting: BTreeSet<u64>,
    /// The small ones of them.
    small: BTreeSet<u64>,
    /// How much smaller requests have taken past a waiting one. Void if another one waits first.
    passed: Passed,
    /// How it is divided among its parts.
    division: Division,
}

/// What was taken past a request.
#[derive(Clone, Copy, Default)]
struct Passed {
    id: u64,
    bytes: usize,
}

/// How a share is divided among its parts, the shares whose parent it is.
enum Division {
    /// Each part may hold what its own limit allows.
    ByLimits,
    /// Each part may also hold no more than is still free. `hungry`: the parts with waiting requests.
    Fair { hungry: BTreeSet<usize> },
}

impl Share {
    fn new(limit_bytes: usize, parent: Option<usize>) -> Share {
        Share {
            limit_bytes,
            in_use_bytes: 0,
            given_back_bytes: 0,
            parent,
            holders: 1,
            waiting: BTreeSet::new(),
            small: BTreeSet::new(),
            passed: Passed::default(),
            division: Division::ByLimits,
        }
    }

    fn free_bytes(&self) -> usize {
        self.limit_bytes - self.in_use_bytes
    }
}

/// The reserve of a share.
#[derive(Clone, Copy)]
struct Reserve {
    share: usize,
    bytes: usize,
}

struct Request {
    share: usize,
    orders: Vec<u8>,
    bytes: usize,
    state: RequestState,
}

enum RequestState {
    /// Among the waiting of share `at`: its own, or an ancestor.
    Parked { at: usize, waker: Waker },
    /// Taken, but not fetched yet.
    Granted(Vec<Piece>),
}

/// What the caller does after it has released the lock: a waker may run, or drop, a task that holds buffers.
#[derive(Default)]
pub(super) struct Wakers {
    pub(super) wake: Vec<Waker>,
    pub(super) drop: Option<Waker>,
}

impl Wakers {
    pub(super) fn wake(self) {
        self.wake.into_iter().for_each(Waker::wake);
    }
}

pub(super) struct Budget {
    shares: slab::Slab<Share>,
    reserve: Option<Reserve>,
    requests: BTreeMap<u64, Request>,
    next_request: u64,
    pub(super) arena: Arena,
    /// The peak use of the whole pool since it was last queried.
    peak_bytes: usize,
}

fn bytes_of(orders: &[u8]) -> usize {
    orders.iter().map(|order| MIN_BUF << order).sum()
}

impl Budget {
    pub(super) fn new(limit_bytes: usize, arena: Arena) -> Budget {
        let mut shares = slab::Slab::new();
        assert_eq!(shares.insert(Share::new(limit_bytes, None)), ROOT);
        Budget { shares, reserve: None, requests: BTreeMap::new(), next_request: 0, arena, peak_bytes: 0 }
    }

    // ---- shares ----

    pub(super) fn limit_bytes(&self, share: usize) -> usize {
        self.shares[share].limit_bytes
    }

    pub(super) fn in_use_bytes(&self, share: usize) -> usize {
        self.shares[share].in_use_bytes
    }

    pub(super) fn has_plenty(&self, share: usize) -> bool {
        self.chain(share).all(|at| self.shares[at].in_use_bytes <= self.shares[at].limit_bytes / 2)
    }

    pub(super) fn given_back_bytes(&self, share: usize) -> u64 {
        self.shares[share].given_back_bytes
    }

    /// Bytes of requests that wait because this share, and not one below it, has no room for them, or because its
    /// division does not allow them.
    pub(super) fn wanted_bytes(&self, share: usize) -> usize {
        let of = |share: usize| {
            let requests = self.shares[share].waiting.iter().filter_map(|id| self.requests.get(id));
            requests.map(|request| request.bytes).fold(0, usize::saturating_add)
        };
        let within_limits = |part: &usize| {
            // A part at its own limit waits only for itself.
            let first = self.shares[*part].waiting.first().and_then(|id| self.requests.get(id));
            first.is_some_and(|request| request.bytes <= self.shares[*part].free_bytes())
        };
        let unfed = match &self.shares[share].division {
            Division::ByLimits => 0,
            Division::Fair { hungry } => {
                hungry.iter().copied().filter(within_limits).map(of).fold(0, usize::saturating_add)
            }
        };
        of(share).saturating_add(unfed)
    }

    /// How many requests wait.
    pub(super) fn waiting(&self) -> usize {
        self.shares.iter().map(|(_, share)| share.waiting.len()).sum()
    }

    /// The number of the request that has waited longest.
    pub(super) fn oldest_waiting(&self) -> Option<u64> {
        self.shares.iter().filter_map(|(_, share)| share.waiting.first()).min().copied()
    }

    /// The peak of the whole pool since the last call.
    pub(super) fn take_peak(&mut self) -> usize {
        std::mem::replace(&mut self.peak_bytes, self.shares[ROOT].in_use_bytes)
    }

    /// Makes a new share of `parent`.
    pub(super) fn divide(&mut self, parent: usize, limit_bytes: usize) -> usize {
        self.shares[parent].holders += 1;
        let limit_bytes = limit_bytes.min(self.shares[parent].limit_bytes);
        self.shares.insert(Share::new(limit_bytes, Some(parent)))
    }

    /// From now on no part of `share` may hold more than is still free of it.
    pub(super) fn divide_fairly(&mut self, share: usize) {
        self.shares[share].division = Division::Fair { hungry: BTreeSet::new() };
    }

    /// Reserves `bytes` of the whole pool for `share`, unless another share has a reserve: only one can. Other shares
    /// keep what they already hold of it until they give it back.
    pub(super) fn set_reserve(&mut self, share: usize, bytes: usize) {
        self.reserve.get_or_insert(Reserve { share, bytes });
    }

    /// The most that `share` can ever hold.
    pub(super) fn attainable_bytes(&self, share: usize) -> usize {
        let limits = self.chain(share).map(|at| self.shares[at].limit_bytes);
        let withheld = self.reserve.filter(|reserve| !self.is_below(share, reserve.share));
        let all = self.shares[ROOT].limit_bytes - withheld.map_or(0, |reserve| reserve.bytes);
        limits.min().unwrap_or(all).min(all)
    }

    fn is_below(&self, share: usize, above: usize) -> bool {
        self.chain(share).any(|at| at == above)
    }

    /// Drops one reference to a share. Its buffers and requests hold references as well, so the last one leaves nothing
    /// behind.
    pub(super) fn let_go(&mut self, share: usize) {
        let mut next = Some(share);
        while let Some(share) = next {
            self.shares[share].holders -= 1;
            if self.shares[share].holders > 0 {
                return;
            }
            self.note_hungry(share, false);
            next = self.shares.remove(share).parent;
            self.reserve = self.reserve.filter(|reserve| reserve.share != share);
        }
    }

    /// The share and its ancestors.
    fn chain(&self, share: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(share), |share| self.shares[*share].parent)
    }

    /// Makes `share` a part of `parent`, with everything that it holds; false, with no change, if it does not fit
    /// there.
    pub(super) fn move_share(
        &mut self,
        share: usize,
        parent: usize,
        caches: &Caches,
        wakers: &mut Wakers,
    ) -> bool {
        let Some(old) = self.shares[share].parent else { return false };
        let (bytes, limit) = (self.shares[share].in_use_bytes, self.shares[share].limit_bytes);
        let above: Vec<usize> = self.chain(old).collect();
        let fits = |at: usize| {
            let held = if above.contains(&at) { bytes } else { 0 };
            let new = &self.shares[at];
            at != share && limit <= new.limit_bytes && new.in_use_bytes - held + bytes <= new.limit_bytes
        };
        if !self.chain(parent).all(fits) {
            return false;
        }
        if let Some(reserve) = self.reserve
            && self.is_below(share, reserve.share)
            && !self.is_below(parent, reserve.share)
        {
            // What it takes along no longer counts against the reserve.
            let rest = self.shares[reserve.share].in_use_bytes - bytes;
            let root = &self.shares[ROOT];
            if root.limit_bytes - root.in_use_bytes < reserve.bytes.saturating_sub(rest) {
                return false;
            }
        }
        // Requests parked at a former ancestor are parked again.
        let parked: Vec<(u64, usize)> = self
            .requests
            .iter()
            .filter(|(_, request)| self.chain(request.share).any(|at| at == share))
            .filter_map(|(id, request)| match request.state {
                RequestState::Parked { at, .. } if above.contains(&at) => Some((*id, at)),
                _ => None,
            })
            .collect();
        for at in above {
            self.shares[at].in_use_bytes -= bytes;
        }
        for at in self.chain(parent).collect::<Vec<_>>() {
            self.shares[at].in_use_bytes += bytes;
        }
        self.note_hungry(share, false);
        self.shares[share].parent = Some(parent);
        self.shares[parent].holders += 1;
        self.note_hungry(share, !self.shares[share].waiting.is_empty());
        for (id, at) in parked {
            self.repark(id, at, share, caches);
        }
        self.serve(share, caches, wakers);
        self.serve(old, caches, wakers);
        self.let_go(old);
        true
    }

    /// Raises a share's limit to that of its parent.
    pub(super) fn raise_limit(&mut self, share: usize, caches: &Caches, wakers: &mut Wakers) {
        if let Some(parent) = self.shares[share].parent {
            self.shares[share].limit_bytes = self.shares[parent].limit_bytes;
            self.serve(share, caches, wakers);
        }
    }

    // ---- taking and giving ----

    /// The first share, from `share` up, that `bytes` more would exceed, or where a request older than `id` waits that
    /// it must not pass.
    fn blocked_at(&self, share: usize, bytes: usize, id: u64) -> Option<usize> {
        let mut next = Some(share);
        // Other shares leave the reserve alone. Requests within the reserve do not queue behind others.
        let (mut within, mut withheld) = (false, self.reserve.map_or(0, |reserve| self.unused(reserve)));
        while let Some(at) = next {
            let share = &self.shares[at];
            if let Some(reserve) = self.reserve.filter(|reserve| reserve.share == at) {
                within = share.in_use_bytes + bytes <= reserve.bytes;
                withheld = 0;
            }
            let first = share
                .waiting
                .first()
                .is_some_and(|first| *first < id && !self.passes(share, *first, bytes, id));
            let free = self.allowance(share) - if at == ROOT { withheld } else { 0 };
            if first && !(within && at == ROOT) || free < bytes {
                return Some(at);
            }
            next = share.parent;
        }
        None
    }

    /// Whether request `id` goes before the older request `first` of this share.
    fn passes(&self, share: &Share, first: u64, bytes: usize, id: u64) -> bool {
        let passed_bytes = if share.passed.id == first { share.passed.bytes } else { 0 };
        let most_bytes = self.requests.get(&first).map_or(0, |request| request.bytes.saturating_mul(PASSES));
        let is_next = share.small.first().is_none_or(|small| *small >= id);
        bytes <= SMALL_BYTES && is_next && passed_bytes + bytes <= most_bytes
    }

    /// What a share may take in addition, according to its own limit and its parent's division.
    fn allowance(&self, share: &Share) -> usize {
        let parent = share.parent.map(|parent| &self.shares[parent]);
        let fairly = parent.filter(|parent| matches!(parent.division, Division::Fair { .. }));
        let fairly = fairly.map(|parent| parent.free_bytes().saturating_sub(share.in_use_bytes));
        share.free_bytes().min(fairly.unwrap_or(usize::MAX))
    }

    /// The free part of a reserve. It exceeds the free part of the whole pool only while others have not given it back.
    fn unused(&self, reserve: Reserve) -> usize {
        let root = &self.shares[ROOT];
        let unused = reserve.bytes.saturating_sub(self.shares[reserve.share].in_use_bytes);
        unused.min(root.limit_bytes - root.in_use_bytes)
    }

    /// Charges what request `id` takes, also to the requests that it passes.
    fn charge(&mut self, share: usize, bytes: usize, id: u64) {
        let mut next = Some(share);
        while let Some(at) = next {
            // What is taken of a reserve is not missing elsewhere.
            let within = at == ROOT
                && !self.shares[ROOT].waiting.is_empty()
                && self.reserve.is_some_and(|reserve| self.is_below(share, reserve.share));
            let share = &mut self.shares[at];
            share.in_use_bytes += bytes;
            if let Some(first) = share.waiting.first().copied().filter(|first| *first < id && !within) {
                let before = if share.passed.id == first { share.passed.bytes } else { 0 };
                share.passed = Passed { id: first, bytes: before + bytes };
            }
            next = share.parent;
        }
        self.peak_bytes = self.peak_bytes.max(self.shares[ROOT].in_use_bytes);
    }

    fn discharge(&mut self, share: usize, bytes: usize) {
        let mut next = Some(share);
        while let Some(at) = next {
            let share = &mut self.shares[at];
            share.in_use_bytes -= bytes;
            share.given_back_bytes = share.given_back_bytes.wrapping_add(bytes as u64);
            next = share.parent;
        }
    }

    /// Collects the caches' blocks if that is what is missing. Returns whether there may be enough now.
    fn collect_for(&mut self, share: usize, bytes: usize, caches: &Caches) -> bool {
        match self.blocked_at(share, bytes, LAST) {
            None => true,
            // If a request waits for the whole pool, the caches are empty.
            Some(ROOT) if self.shares[ROOT].waiting.is_empty() => {
                self.collect(caches);
                self.blocked_at(share, bytes, LAST).is_none()
            }
            Some(_) => false,
        }
    }

    /// Takes one block at once, or none.
    pub(super) fn try_take(&mut self, share: usize, order: u8, caches: &Caches) -> Option<Piece> {
        let bytes = MIN_BUF << order;
        if !self.collect_for(share, bytes, caches) {
            return None;
        }
        self.charge(share, bytes, LAST);
        let piece = self.block(order, caches);
        if piece.is_none() {
            self.discharge(share, bytes);
        }
        piece
    }

    /// Takes all blocks at once, or none.
    pub(super) fn try_take_all(
        &mut self,
        share: usize,
        orders: &[u8],
        caches: &Caches,
    ) -> Option<Vec<Piece>> {
        if !self.collect_for(share, bytes_of(orders), caches) {
            return None;
        }
        self.take_all(share, orders, LAST, caches)
    }

    /// A block, from a new slab if the others have no gap for it. The caches may hold exactly the blocks that would
    /// merge.
    fn block(&mut self, order: u8, caches: &Caches) -> Option<Piece> {
        if let Some(piece) = self.arena.take(order) {
            return Some(piece);
        }
        self.collect(caches);
        self.arena.take(order).or_else(|| self.arena.take_of_new(order))
    }

    /// Takes blocks that every share allows to request `id`; none if the system has no memory for a slab.
    fn take_all(&mut self, share: usize, orders: &[u8], id: u64, caches: &Caches) -> Option<Vec<Piece>> {
        let bytes = bytes_of(orders);
        self.charge(share, bytes, id);
        let mut pieces = Vec::with_capacity(orders.len());
        for order in orders {
            match self.block(*order, caches) {
                Some(piece) => pieces.push(piece),
                None => {
                    pieces.into_iter().for_each(|piece| self.arena.give(piece));
                    self.discharge(share, bytes);
                    return None;
                }
            }
        }
        Some(pieces)
    }

    /// Takes a block back and serves waiting requests.
    pub(super) fn give(&mut self, share: usize, piece: Piece, caches: &Caches, wakers: &mut Wakers) {
        self.arena.give(piece);
        self.discharge(share, piece.bytes());
        self.serve(share, caches, wakers);
    }

    /// Returns the caches' blocks to the slabs.
    pub(super) fn collect(&mut self, caches: &Caches) {
        let (arena, root) = (&mut self.arena, &mut self.shares[ROOT]);
        caches.collect(|piece| {
            arena.give(piece);
            root.in_use_bytes -= piece.bytes();
        });
    }

    // ---- waiting ----

    /// Enqueues a request after all others. It may be granted at once.
    pub(super) fn enter(
        &mut self,
        share: usize,
        orders: Vec<u8>,
        waker: Waker,
        caches: &Caches,
        wakers: &mut Wakers,
    ) -> u64 {
        let id = self.next_request;
        self.next_request += 1;
        let bytes = bytes_of(&orders);
        let state = RequestState::Parked { at: share, waker };
        self.requests.insert(id, Request { share, orders, bytes, state });
        self.park(id, share);
        self.note_root(share, caches);
        self.serve(share, caches, wakers);
        id
    }

    /// What request `id` was granted; otherwise its task is woken by `waker` from now on.
    pub(super) fn fetch(&mut self, id: u64, waker: &Waker, wakers: &mut Wakers) -> Option<Vec<Piece>> {
        match &mut self.requests.get_mut(&id)?.state {
            RequestState::Parked { waker: old, .. } if old.will_wake(waker) => None,
            RequestState::Parked { waker: old, .. } => {
                wakers.drop = Some(std::mem::replace(old, waker.clone()));
                None
            }
            RequestState::Granted(pieces) => {
                let pieces = std::mem::take(pieces);
                self.requests.remove(&id);
                Some(pieces)
            }
        }
    }

    /// Cancels request `id` and serves those behind it.
    pub(super) fn give_up(&mut self, id: u64, caches: &Caches, wakers: &mut Wakers) {
        let Some(request) = self.requests.remove(&id) else { return };
        match request.state {
            RequestState::Parked { at, waker } => {
                wakers.drop = Some(waker);
                self.unpark(id, at);
                self.note_root(at, caches);
                self.serve(at, caches, wakers);
            }
            RequestState::Granted(pieces) => {
                pieces.into_iter().for_each(|piece| self.arena.give(piece));
                self.discharge(request.share, request.bytes);
                self.serve(request.share, caches, wakers);
            }
        }
    }

    /// Grants what has become possible at `share` and its ancestors, in order; then to the small requests that fit into
    /// the remainder.
    pub(super) fn serve(&mut self, share: usize, caches: &Caches, wakers: &mut Wakers) {
        let mut next = Some(share);
        while let Some(at) = next {
            while let Some(id) = self.shares[at].waiting.first().copied() {
                if !self.advance(id, at, caches, wakers) {
                    break;
                }
            }
            self.serve_small(at, caches, wakers);
            // Memory that became free also raises what each part may hold.
            while let Some((id, part)) = self.least_of_hungry(at) {
                if !self.advance(id, part, caches, wakers) {
                    break;
                }
            }
            for part in self.hungry_for_little(at) {
                self.serve_small(part, caches, wakers);
            }
            next = self.shares[at].parent;
        }
    }

    fn serve_small(&mut self, at: usize, caches: &Caches, wakers: &mut Wakers) {
        while let Some(id) = self.shares[at].small.first().copied() {
            if !self.advance(id, at, caches, wakers) {
                break;
            }
        }
    }

    /// The parts of a fairly divided share in which small requests wait.
    fn hungry_for_little(&self, share: usize) -> Vec<usize> {
        let Division::Fair { hungry } = &self.shares[share].division else { return Vec::new() };
        hungry.iter().copied().filter(|part| !self.shares[*part].small.is_empty()).collect()
    }

    /// The request of the part of `share` that holds least, if the share is divided fairly: memory that becomes free
    /// accumulates for it. A request that its own part has no room for does not hold up others.
    fn least_of_hungry(&self, share: usize) -> Option<(u64, usize)> {
        let Division::Fair { hungry } = &self.shares[share].division else { return None };
        let first = |part: &usize| {
            let (share, id) = (&self.shares[*part], *self.shares[*part].waiting.first()?);
            let bytes = self.requests.get(&id)?.bytes;
            (bytes <= share.free_bytes()).then_some((share.in_use_bytes, id, *part))
        };
        hungry.iter().filter_map(first).min().map(|(_, id, part)| (id, part))
    }

    /// Grants request `id`, the first one or the first small one parked at share `at`, or parks it where it is blocked
    /// now; false if it stays here.
    fn advance(&mut self, id: u64, at: usize, caches: &Caches, wakers: &mut Wakers) -> bool {
        let Some(Request { share, bytes, .. }) = self.requests.get(&id) else { return false };
        let (share, bytes) = (*share, *bytes);
        match self.blocked_at(share, bytes, id) {
            Some(blocked) if blocked == at => return false,
            Some(blocked) => {
                self.repark(id, at, blocked, caches);
                return true;
            }
            None => {}
        }
        let orders = self.requests.get_mut(&id).map(|request| std::mem::take(&mut request.orders));
        let orders = orders.unwrap_or_default();
        let Some(pieces) = self.take_all(share, &orders, id, caches) else {
            if let Some(request) = self.requests.get_mut(&id) {
                request.orders = orders;
            }
            // It waits for memory of the system, and meanwhile for the whole pool.
            if at != ROOT {
                self.repark(id, at, ROOT, caches);
            }
            return at != ROOT;
        };
        self.unpark(id, at);
        self.note_root(at, caches);
        if let Some(request) = self.requests.get_mut(&id)
            && let RequestState::Parked { waker, .. } =
                std::mem::replace(&mut request.state, RequestState::Granted(pieces))
        {
            wakers.wake.push(waker);
        }
        true
    }

    /// Parks request `id` at share `at`.
    fn park(&mut self, id: u64, at: usize) {
        let is_small = self.requests.get(&id).is_some_and(|request| request.bytes <= SMALL_BYTES);
        let share = &mut self.shares[at];
        share.waiting.insert(id);
        if is_small {
            share.small.insert(id);
        }
        self.note_hungry(at, true);
    }

    fn unpark(&mut self, id: u64, at: usize) {
        let share = &mut self.shares[at];
        share.waiting.remove(&id);
        share.small.remove(&id);
        if share.waiting.is_empty() {
            self.note_hungry(at, false);
        }
    }

    /// Notes whether requests wait for `share`, if its parent is divided fairly.
    fn note_hungry(&mut self, share: usize, waits: bool) {
        let parent = self.shares[share].parent.map(|parent| &mut self.shares[parent].division);
        if let Some(Division::Fair { hungry }) = parent {
            if waits {
                hungry.insert(share)
            } else {
                hungry.remove(&share)
            };
        }
    }

    fn repark(&mut self, id: u64, from: usize, to: usize, caches: &Caches) {
        self.unpark(id, from);
        self.park(id, to);
        if let Some(Request { state: RequestState::Parked { at, .. }, .. }) = self.requests.get_mut(&id) {
            *at = to;
        }
        self.note_root(from, caches);
        self.note_root(to, caches);
    }

    /// While any request waits for the whole pool, nothing stays in the caches.
    fn note_root(&mut self, changed: usize, caches: &Caches) {
        if changed != ROOT {
            return;
        }
        let wanted = !self.shares[ROOT].waiting.is_empty();
        if caches.close(wanted) != wanted && wanted {
            self.collect(caches);
        }
    }
}
