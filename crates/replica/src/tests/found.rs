//! What a comparison has found, as it is told after a restart.

use super::stories::{K, pair, start, tell, write};
use super::world::World;
use crate::source::First;
use crate::status::{Mode, Verified};

/// The source is opened anew, and its copy follows it.
async fn restarts(world: &World) {
    world.source(0).close().await.expect("it closes");
    world.kill(0);
    world.open_source(0).await;
    world.ship(0, 0, 1);
    world.until_follows(0).await;
}

fn told(world: &World) -> Option<Verified> {
    world.source(0).status().peers[0].verified.clone()
}

/// A pair whose copy has another byte than its source, and the result of the comparison that has found it.
async fn differing() -> (World, Verified) {
    let world = pair(start(Mode::Synchronous), First::Copy).await;
    write(&world.source(0).block(1), 0, 4096, 1).await;
    let copy = world.destination(1);
    world.until("everything is applied", || copy.status().applied == 1).await;
    let mut content = world.volumes(1).swap_remove(1);
    content[70_000] ^= 1;
    world.nodes[1].members[1].replace(content);
    let found = world.until_verified(0).await;
    assert_eq!((found.different, found.first[0].member, found.first[0].offset), (64 * K, 1, 64 * K));
    (world, found)
}

#[test]
fn what_a_comparison_has_found_is_told_until_one_finds_nothing() {
    tell(async {
        let (world, found) = differing().await;
        restarts(&world).await;
        assert_eq!(told(&world), Some(found));
        let repaired = world.source(0).verify(0, true).await.expect("it is compared");
        world.until_follows(0).await;
        restarts(&world).await;
        // Nobody has looked since.
        assert_eq!(told(&world), Some(repaired));
        let equal = world.until_verified(0).await;
        restarts(&world).await;
        assert_eq!((equal.different, told(&world)), (0, Some(equal)));
    });
}

#[test]
fn what_a_comparison_has_found_goes_with_the_copy() {
    tell(async {
        let (world, _) = differing().await;
        let source = world.source(0);
        source.remove_peer(0).await.expect("it goes");
        source.until_links_ended().await;
        world.add_peer(&source, "copy", First::Seeded).await;
        world.ship(0, 0, 1);
        world.until_follows(0).await;
        assert_eq!(told(&world), None);
    });
}

#[test]
fn what_a_comparison_has_found_goes_when_everything_is_compared_and_copied() {
    tell(async {
        let (world, _) = differing().await;
        // Its disks are of an earlier day: what it had acknowledged is gone, and nobody can name what is missing.
        let node = &world.nodes[1];
        let then = node.journal.content();
        for n in 0..300 {
            write(&world.source(0).block(0), (n % 8) * 4096, 4096, n as u8).await;
        }
        world.kill(1);
        node.journal.replace(then);
        world.start_destination_as_it_is(1).await;
        world.until("it is compared as a whole", || told(&world).is_none()).await;
    });
}
