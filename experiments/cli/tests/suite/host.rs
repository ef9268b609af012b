//! `ccplane host` on real interfaces: a veth pair in a network namespace of its own.

use std::process::Command;

use crate::common::shell::{PAIR, pair_with_far, shell};
use crate::common::{stderr, stdout};
use ccplane_testing::skipped;

fn said(test: &str, script: &str) -> Option<String> {
    let output = shell(test, PAIR, script)?;
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    Some(stdout(&output))
}

#[test]
fn changes_are_made_and_taken_back() {
    const SCRIPT: &str = r#"
        set="$ccplane host set --journal $journal"
        values() { cat /sys/class/net/here/mtu /sys/class/net/here/gro_flush_timeout /sys/class/net/here/queues/rx-0/rps_cpus
            ethtool -k here | grep generic-receive-offload; }
        values
        $set net/here/mtu=1400 net/here/offload/gro=on
        values
        $set --apply net/here/mtu=1400 net/here/gro_flush_timeout=20000 net/here/rx-0/rps_cpus=0 net/here/offload/gro=on
        values
        echo '[0]' >$journal/host.cores
        $ccplane host undo --journal $journal | sed s:$journal/::
        values
        $ccplane host undo --journal $journal
        ls $journal
    "#;
    let Some(said) = said("changes_are_made_and_taken_back", SCRIPT) else { return };
    let off = "generic-receive-offload: off\n";
    let before = format!("1500\n0\n0\n{off}");
    let expected = format!(
        "{before}echo 1400 > /sys/class/net/here/mtu\nethtool -K here gro on\n\
         # nothing was changed: --apply makes the changes\n{before}\
         net/here/mtu: 1400, was 1500\nnet/here/gro_flush_timeout: 20000, was 0\n\
         net/here/rx-0/rps_cpus: 0, was \nnet/here/offload/gro: on, was off\n\
         1400\n20000\n1\ngeneric-receive-offload: on\n\
         net/here/offload/gro: off again\nnet/here/rx-0/rps_cpus:  again\n\
         net/here/gro_flush_timeout: 0 again\nnet/here/mtu: 1500 again\nhost.cores: removed\n{before}\
         nothing to take back\n"
    );
    assert_eq!(said, expected);
}

/// A veth device has an instance of NAPI for each queue while it merges packets.
#[test]
fn interrupts_of_a_queue_are_suspended_and_taken_back() {
    const SCRIPT: &str = r#"
        set="$ccplane host set --journal $journal"
        value() { $ccplane host show here | grep napi-0/irq-suspend-timeout >$journal/line || echo none >$journal/line
            tr -s ' ' <$journal/line; }
        ethtool -K here gro on
        value
        $set net/here/napi-0/irq-suspend-timeout=20000
        value
        $set --apply net/here/napi-0/irq-suspend-timeout=20000 net/here/napi-0/defer-hard-irqs=3             net/here/napi-0/gro-flush-timeout=30000 || true
        value
        $ccplane host undo --journal $journal
        value
        $set --apply net/here/napi-0/gro-flush-timeout=1 net/here/napi-9/irq-suspend-timeout=1 2>&1 || echo "refused with $?"
    "#;
    let test = "interrupts_of_a_queue_are_suspended_and_taken_back";
    let Some(said) = said(test, SCRIPT) else { return };
    let mut lines = said.lines().map(str::trim_end);
    let name = "net/here/napi-0/irq-suspend-timeout";
    let (is, was) = (format!("{name} 20000"), format!("{name} 0"));
    let first = lines.next().unwrap();
    if first == "none" || first.contains("not on this host") {
        return skipped(test, "the kernel has no irq-suspend-timeout (Linux 6.13)");
    }
    assert_eq!(first, was);
    let expected = [
        format!("ccplane host set --apply {name}=20000"),
        "# nothing was changed: --apply makes the changes".to_owned(),
        was.clone(),
        format!("{name}: 20000, was 0"),
        "net/here/napi-0/defer-hard-irqs: 3, was 0".to_owned(),
        "net/here/napi-0/gro-flush-timeout: 30000, was 0".to_owned(),
        is,
        "net/here/napi-0/gro-flush-timeout: 0 again".to_owned(),
        "net/here/napi-0/defer-hard-irqs: 0 again".to_owned(),
        format!("{name}: 0 again"),
        was,
    ];
    for line in &expected {
        assert_eq!(lines.next(), Some(line.as_str()), "{said}");
    }
    let refused: Vec<&str> = lines.collect();
    assert!(refused.concat().contains("NAPI instances of the interface: 1"), "{said}");
    assert_eq!(refused.last(), Some(&"refused with 1"), "{said}");
}

/// The kernel counts the packets that waiting threads have taken from devices by themselves (`BusyPollRxPackets`).
#[test]
fn a_server_takes_packets_from_a_device_whose_interrupts_are_suspended() {
    // Datagrams come through the device's NAPI only where they may be merged for forwarding.
    const FORWARDING: &str = "ethtool -K here gro on rx-udp-gro-forwarding on";
    const SCRIPT: &str = r#"
        server=
        trap '[ -z "$server" ] || kill $server' EXIT
        polled() { awk '$1 == "TcpExt:" && column { print $column }
            $1 == "TcpExt:" { for (i = 1; i <= NF; i++) if ($i == "BusyPollRxPackets") column = i }' /proc/net/netstat; }
        serve() {
            $ccplane quic serve $journal/served --listen 10.77.0.1:4433 --algorithm reno --json "$@" >$journal/said &
            server=$!
            for n in $(seq 1 600); do [ -s $journal/said ] && break; sleep 0.05; done
            for n in $(seq 1 $most); do
                ip netns exec far $ccplane quic get 10.77.0.1:4433 file -o $journal/got --insecure >/dev/null
                cmp $journal/served/file $journal/got
                [ "$(polled)" -gt 0 ] && break
            done
            kill -INT $server
            wait $server
            server=
            echo "$(polled) were polled"
        }
        napi=net/here/napi-0
        $ccplane host set --apply --journal $journal $napi/irq-suspend-timeout=20000000 $napi/defer-hard-irqs=2 \
            $napi/gro-flush-timeout=200000 >/dev/null 2>$journal/why || { echo "none: $(tail -n 1 $journal/why)"; exit 0; }
        mkdir $journal/served
        head -c 3000000 /dev/urandom >$journal/served/file
        most=3 serve
        most=30 serve --busy-poll 200
        $ccplane host undo --journal $journal
    "#;
    let test = "a_server_takes_packets_from_a_device_whose_interrupts_are_suspended";
    let Some(output) = shell(test, &pair_with_far(FORWARDING), SCRIPT) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{said}{errors}");
    if let Some(why) = said.strip_prefix("none: ") {
        return skipped(test, why.trim_end());
    }
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("0 were polled"), "{said}{errors}");
    let polled = lines.next().and_then(|line| line.strip_suffix(" were polled")).unwrap();
    assert!(polled.parse::<u64>().unwrap() > 0, "{said}{errors}");
    assert_eq!(lines.filter(|line| line.ends_with(": 0 again")).count(), 3, "{said}");
}

/// Whatever moment the process is killed at.
#[test]
fn what_a_killed_process_has_changed_is_taken_back() {
    const SCRIPT: &str = r#"
        for n in $(seq 1 40); do
            $ccplane host set --apply --journal $journal net/here/mtu=1400 net/here/gro_flush_timeout=20000 \
                net/here/rx-0/rps_cpus=0 net/here/napi_defer_hard_irqs=2 net/there/mtu=1300 >/dev/null 2>&1 &
            if [ $((n % 2)) = 0 ]; then
                # The second line is written after the first change.
                lines() { wc -l 2>/dev/null <$journal/host.jsonl || echo 0; }
                while [ "$(lines)" -lt 2 ] && kill -0 $! 2>/dev/null; do :; done
            else
                sleep 0.00$((n % 10))
            fi
            kill -9 $! 2>/dev/null || true
            wait $! 2>/dev/null || true
            $ccplane host undo --journal $journal >>$journal/said
            cat /sys/class/net/here/mtu /sys/class/net/here/gro_flush_timeout /sys/class/net/here/queues/rx-0/rps_cpus \
                /sys/class/net/here/napi_defer_hard_irqs /sys/class/net/there/mtu | tr '\n' ' '
            echo
        done
        echo "restored $(grep -c again $journal/said || true)"
    "#;
    let Some(said) = said("what_a_killed_process_has_changed_is_taken_back", SCRIPT) else { return };
    let (rounds, restored) = said.trim().rsplit_once('\n').unwrap();
    assert!(rounds.lines().all(|line| line == "1500 0 0 0 1500 "), "{said}");
    // Had no process come to a change before it was killed, nothing would have been tried.
    let restored: u32 = restored.strip_prefix("restored ").unwrap().parse().unwrap();
    assert!(restored > 0, "{said}");
    eprintln!("of 40 rounds: {restored} changes");
}

#[test]
fn what_a_device_refuses_is_said_and_takes_back_the_rest() {
    const SCRIPT: &str = r#"
        set="$ccplane host set --apply --journal $journal"
        $set net/here/mtu=1400 net/here/ring/rx=512 && exit 9
        cat /sys/class/net/here/mtu
        $set net/here/mtu=1400 net/gone/mtu=1400 && exit 9
        cat /sys/class/net/here/mtu
        $set net/here/mtu=1400 net/here/mtu=99999999 && exit 9
        cat /sys/class/net/here/mtu
        mount -o remount,bind,ro /sys
        $set net/here/mtu=1400 && exit 9
        $ccplane host show here | grep net/here/mtu
    "#;
    let test = "what_a_device_refuses_is_said_and_takes_back_the_rest";
    let Some(output) = shell(test, PAIR, &format!("set +e; {SCRIPT}")) else { return };
    let (said, errors) = (stdout(&output), stderr(&output));
    assert!(said.starts_with("1500\n1500\n1500\n"), "{said}{errors}");
    assert!(said.contains("cannot be changed: Read-only file system"), "{said}{errors}");
    let refusals: Vec<&str> = errors.lines().filter(|line| line.contains("taken back")).collect();
    assert_eq!(refusals.len(), 4, "{errors}");
    assert!(refusals[0].contains("net/here/ring/rx") && refusals[1].contains("net/gone/mtu"), "{errors}");
}

#[test]
fn an_interface_that_vanishes_is_said() {
    const SCRIPT: &str = r#"
        $ccplane host set --apply --journal $journal net/here/mtu=1400 >/dev/null
        ip link del here
        $ccplane host undo --journal $journal
        $ccplane host show here 2>&1 || echo "refused with $?"
    "#;
    let Some(said) = said("an_interface_that_vanishes_is_said", SCRIPT) else { return };
    assert!(said.starts_with("net/here/mtu: gone: ") && said.ends_with("refused with 2\n"), "{said}");
}

#[test]
fn a_host_is_shown_and_drawn() {
    const SCRIPT: &str = r#"
        $ccplane host show --svg $journal/host.svg here
        grep -c '<text' $journal/host.svg
        $ccplane host show --json
    "#;
    let Some(said) = said("a_host_is_shown_and_drawn", SCRIPT) else { return };
    assert!(said.contains("net/here/mtu") && !said.contains("net/there/mtu\n"), "{said}");
    let json: serde_json::Value = serde_json::from_str(said.trim().lines().last().unwrap()).unwrap();
    let names: Vec<&str> = json["topology"]["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["here", "lo", "there"]);
    let count = json["topology"]["processors"].as_array().unwrap().len();
    assert!(count >= std::thread::available_parallelism().unwrap().get(), "{count} processors");
}

#[test]
fn arguments_that_say_nothing_are_refused() {
    for wrong in [
        &["host", "set", "net/lo/mtu"][..],
        &["host", "set", "net/lo/nothing=1"],
        &["host", "set", "irq/1=x"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ccplane")).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}
