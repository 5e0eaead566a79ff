//! A share of the pool holds no more than its limit, and holds up no other share.

use super::*;

#[test]
fn strangers_leave_the_rest_alone() {
    let pool = Pool::new(8 * MAX_BUF);
    let strangers = pool.for_strangers();
    assert_eq!(strangers.limit_bytes(), MAX_BUF);
    let held: Vec<Buf> = std::iter::from_fn(|| strangers.try_alloc(MAX_BUF / 16)).collect();
    assert_eq!(held.len(), 16);
    let mut stranger = Waiter::new(&strangers, &[MIN_BUF]);
    assert!(stranger.poll().is_none());
    // Neither what they hold nor their waiting keeps others from the remainder.
    let rest: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc(MAX_BUF)).collect();
    assert_eq!(rest.len(), 7);
    assert_eq!((pool.in_use_bytes(), strangers.in_use_bytes()), (8 * MAX_BUF, MAX_BUF));
    let mut member = Waiter::new(&pool, &[MAX_BUF]);
    assert!(member.poll().is_none());
    drop(rest);
    assert_eq!((member.woken(), stranger.woken()), (1, 0));
    drop(held);
    assert_eq!(stranger.woken(), 1, "charged to the share, and given back to it");
    assert_eq!((strangers.in_use_bytes(), pool.in_use_bytes()), (MIN_BUF, MAX_BUF + MIN_BUF));
}

#[test]
fn whoever_is_known_leaves_strangers_their_part() {
    let pool = Pool::new(8 * MAX_BUF);
    let strangers = pool.for_strangers();
    let known = pool.share(usize::MAX);
    let mut held: Vec<Buf> = std::iter::from_fn(|| known.try_alloc(MAX_BUF)).collect();
    assert_eq!(held.len(), 7);
    // Small buffers, which come from caches, and the pool itself leave it alone as well.
    assert!(pool.try_alloc(MIN_BUF).is_none() && known.try_alloc(MIN_BUF).is_none());
    let mut waits = Waiter::new(&pool, &[MAX_BUF]);
    assert!(waits.poll().is_none());
    let mut logs_on: Vec<Buf> = std::iter::from_fn(|| strangers.try_alloc(MAX_BUF / 4)).collect();
    assert_eq!(logs_on.len(), 4, "although somebody waits for the pool");
    logs_on.pop();
    assert_eq!(waits.woken(), 0, "what strangers give back is theirs");
    held.pop();
    assert_eq!(waits.woken(), 1);
    let wanted = vec![MAX_BUF; 8];
    let wait = crate::rt::block_on(pool.alloc_many(&wanted)).unwrap();
    let limit_bytes = 7 * MAX_BUF;
    assert_eq!(
        wait.err(),
        Some(OverLimit { wanted_bytes: 8 * MAX_BUF, limit_bytes }),
        "it would wait for ever"
    );
    // A share that leaves the strangers' share uses the others' part.
    drop((held, waits, logs_on));
    let connection = strangers.share(MAX_BUF);
    let (mine, others) =
        (connection.try_alloc(MAX_BUF).unwrap(), pool.try_alloc_many(&[MAX_BUF; 7]).unwrap());
    assert!(!connection.move_to(&known));
    drop(others);
    assert!(!connection.has_plenty() && known.has_plenty());
    assert!(connection.move_to(&known) && strangers.try_alloc(MAX_BUF).is_some());
    connection.raise_limit();
    assert_eq!(connection.limit_bytes(), 8 * MAX_BUF);
    assert!(connection.has_plenty());
    drop((mine, connection, strangers));
    assert!(pool.try_alloc_many(&[MAX_BUF; 8]).is_some(), "the reserve ends with its share");
}

#[test]
fn shares_are_memory_of_one_pool() {
    let (pool, other) = (Pool::new(2 * MAX_BUF), Pool::new(2 * MAX_BUF));
    let share = pool.share(1);
    assert_eq!(share.limit_bytes(), MAX_BUF, "one buffer of any size fits");
    assert_eq!(pool.share(usize::MAX).limit_bytes(), 2 * MAX_BUF);
    let buf = share.try_alloc(1).unwrap();
    assert_eq!(buf.location(&pool), Some((0, 0)));
    assert_eq!(buf.location(&other), None);
    assert_eq!(pool.location(&buf.freeze()), Some((0, 0)));
}

#[test]
fn who_waits_for_the_pool_waits_in_order_whatever_the_share() {
    let pool = Pool::new(2 * MAX_BUF);
    let share = pool.share(MAX_BUF);
    let mut all = pool.try_alloc_many(&[MAX_BUF; 2]).unwrap();
    let mut first = Waiter::new(&share, &[MAX_BUF / 2]);
    let mut second = Waiter::new(&pool, &[MAX_BUF]);
    let mut third = Waiter::new(&share, &[MAX_BUF / 2]);
    assert!(first.poll().is_none() && second.poll().is_none() && third.poll().is_none());
    all.pop();
    assert_eq!((first.woken(), second.woken(), third.woken()), (1, 0, 0));
    all.pop();
    assert_eq!((first.woken(), second.woken(), third.woken()), (1, 1, 1));
    assert!(first.poll().is_some() && second.poll().is_some() && third.poll().is_some());
}

#[test]
fn a_connection_that_has_logged_on_takes_its_buffers_with_it() {
    let pool = Pool::new(8 * MAX_BUF);
    let strangers = pool.for_strangers();
    let connection = strangers.share(MAX_BUF);
    let buf = connection.try_alloc(MAX_BUF).unwrap();
    let mut other = Waiter::new(&strangers.share(MAX_BUF), &[MIN_BUF]);
    let mut own = Waiter::new(&connection, &[MIN_BUF]);
    assert!(other.poll().is_none() && own.poll().is_none());
    assert!(!connection.move_to(&Pool::new(8 * MAX_BUF)), "another pool");
    assert!(!connection.move_to(&connection));
    assert!(connection.move_to(&pool));
    assert_eq!((strangers.in_use_bytes(), connection.in_use_bytes()), (MIN_BUF, MAX_BUF));
    assert_eq!(
        (other.woken(), own.woken()),
        (1, 0),
        "the strangers have room, the connection is at its limit"
    );
    drop(buf);
    assert_eq!(own.woken(), 1);
    drop((own, other));
    assert_eq!((pool.in_use_bytes(), strangers.in_use_bytes(), connection.in_use_bytes()), (0, 0, 0));
}

#[test]
fn a_share_moves_only_where_it_fits() {
    let pool = Pool::new(4 * MAX_BUF);
    let (small, large) = (pool.share(MAX_BUF), pool.share(2 * MAX_BUF));
    let one = small.share(MAX_BUF);
    let _held = (one.try_alloc(MAX_BUF).unwrap(), large.try_alloc_many(&[MAX_BUF; 2]).unwrap());
    assert!(!one.move_to(&large), "no room");
    assert!(!small.move_to(&one), "below itself");
    assert!(!large.move_to(&small), "a lower limit");
    assert!(!pool.move_to(&small), "the whole pool");
    assert_eq!((small.in_use_bytes(), large.in_use_bytes()), (MAX_BUF, 2 * MAX_BUF));
}

#[test]
fn a_share_ends_with_its_last_buffer() {
    let pool = Pool::new(4 * MAX_BUF);
    let parent = pool.share(2 * MAX_BUF);
    let child = parent.share(MAX_BUF);
    let buf = child.try_alloc(MAX_BUF).unwrap();
    drop((parent, child));
    assert_eq!(pool.in_use_bytes(), MAX_BUF);
    drop(buf);
    assert_eq!(pool.in_use_bytes(), 0);
}

#[test]
fn of_a_fair_share_no_part_holds_more_than_is_left_to_others() {
    let pool = Pool::new(4 * MAX_BUF);
    let fair = pool.fair_share(2 * MAX_BUF);
    let parts: Vec<Pool> = (0..7).map(|_| fair.share(MAX_BUF)).collect();
    let mut held: Vec<Vec<Buf>> = parts.iter().map(|_| Vec::new()).collect();
    // They take all that they can, and give some back now and then.
    for _ in 0..200 {
        for (part, held) in parts.iter().zip(&mut held) {
            held.truncate(held.len() * 7 / 8);
            held.extend(std::iter::from_fn(|| part.try_alloc(MAX_BUF / 256)));
        }
    }
    let each = fair.limit_bytes() / (parts.len() + 1);
    let parts: Vec<usize> = parts.iter().map(Pool::in_use_bytes).collect();
    assert!(parts.iter().all(|part| (each / 2..each * 2).contains(part)), "{parts:?} of {each}");
    let next = fair.share(MAX_BUF);
    assert!(next.try_alloc(each / 2).is_some());
    drop(held);
    assert!(next.try_alloc(MAX_BUF).is_some());
}

#[test]
fn what_becomes_free_of_a_fair_share_goes_to_who_holds_least() {
    let pool = Pool::new(4 * MAX_BUF);
    let fair = pool.fair_share(2 * MAX_BUF);
    let parts: Vec<Pool> = (0..3).map(|_| fair.share(MAX_BUF)).collect();
    let all = |part: &Pool| std::iter::from_fn(|| part.try_alloc(MAX_BUF / 8)).collect::<Vec<Buf>>();
    let (mut first, second) = (all(&parts[0]), all(&parts[1]));
    assert_eq!((first.len(), second.len()), (8, 4));
    let waiter = |part: usize, bytes: usize| Waiter::new(&parts[part], &[bytes]);
    let mut greedy = waiter(1, MAX_BUF / 8);
    let mut others = [waiter(2, MAX_BUF), waiter(2, MAX_BUF / 8)];
    assert!(greedy.poll().is_none() && others.iter_mut().all(|other| other.poll().is_none()));
    assert_eq!(fair.wanted_bytes(), MAX_BUF / 8 + MAX_BUF + MAX_BUF / 8);
    // Memory that becomes free accumulates for the share that has none, however much it requests.
    first.truncate(6);
    assert_eq!((greedy.woken(), others.each_ref().map(Waiter::woken)), (0, [0, 0]));
    first.truncate(4);
    assert_eq!((greedy.woken(), others.each_ref().map(Waiter::woken)), (0, [1, 0]));
    // A share at its own limit holds up no other.
    drop(first);
    assert_eq!(greedy.woken(), 0, "it has what is free already");
    drop(others);
    assert_eq!(greedy.woken(), 1);
    assert!(greedy.poll().is_some());
    // A request that is cancelled is removed together with its share.
    let mut gone = Waiter::new(&fair.share(MAX_BUF), &[MAX_BUF]);
    let held = all(&fair);
    assert!(gone.poll().is_none());
    drop((gone, held, second));
    assert_eq!((fair.in_use_bytes(), fair.wanted_bytes(), pool.waiting()), (0, 0, 0));
}
