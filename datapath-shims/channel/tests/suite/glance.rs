//! A hub's rings, as a dispatcher on another thread looks at them.

use crate::common::{hub, info, toy};
use ccplane_channel::hub::Change;
use ccplane_channel::{ServeOptions, Served, Wake};
use ccplane_contract::FlowId;
use ccplane_testing::wait_until;

#[test]
fn glances_follow_the_rings_of_a_hub() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ccp.sock");
    let mut hub = hub(&path, Wake::Dispatch);
    assert!(hub.rings_changed());
    assert!(hub.glances().is_empty() && !hub.rings_changed() && !hub.show());

    let (mut served, mut toy) = (Served::connect(&path, ServeOptions::new("toy").unwrap()), toy());
    served.turn(&mut toy, 0);
    let mut changes = Vec::new();
    hub.receive(10, 0, &mut changes);
    assert!(served.turn(&mut toy, 0).connected && served.has_ring());
    assert!(hub.rings_changed());
    let glances = hub.glances();
    assert_eq!((glances.len(), hub.rings_changed()), (1, false));
    while hub.receive(10, 0, &mut changes) > 0 {}
    assert!(!hub.show() && !glances[0].is_ready());

    toy.start(FlowId(7), info());
    served.turn(&mut toy, 1000);
    assert!(glances[0].is_ready() && hub.show());
    while hub.receive(10, 1000, &mut changes) > 0 {}
    assert!(!hub.show() && !glances[0].is_ready());

    // Its goodbye comes by the socket.
    served.farewell();
    let mut now_us = 1000;
    wait_until("the datapath has left", || {
        hub.poll_now().unwrap();
        now_us += 1000;
        hub.receive(10, now_us, &mut changes);
        matches!(changes.last(), Some(Change::Left(_)))
    });
    assert!(hub.rings_changed() && hub.glances().is_empty());
}
