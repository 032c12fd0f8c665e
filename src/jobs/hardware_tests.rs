//! Devices, cards and lists here are synthetic.

use super::*;
use crate::base::facts::Facts;
use crate::base::topology::NumaNode;

const UUID: &str = "6d6f00112233445566778899aabbccdd";

fn device(id: &str, class: DeviceClass, uuid: Option<&str>, pci: Option<&str>) -> DeviceInfo {
    let backend = Backend::ALL.into_iter().find(|b| id.starts_with(b.name())).unwrap();
    DeviceInfo {
        id: id.into(),
        uid: format!("uid of {id}"),
        name: format!("name of {id}"),
        vendor: if backend == Backend::Cuda { "NVIDIA" } else { "" }.into(),
        backend,
        class,
        api: if backend == Backend::Opencl { "OpenCL 3.0" } else { "" }.into(),
        facts: Facts { uuid: uuid.map(Into::into), pci: pci.map(Into::into), ..Facts::default() },
        ..DeviceInfo::ordinary_gpu()
    }
}

fn ids(rows: &[Hardware]) -> Vec<String> {
    rows.iter().map(|r| r.ids.join(" ")).collect()
}

#[test]
fn everything_on_the_processor_is_the_processor() {
    let soft = |id| device(id, DeviceClass::Software, None, None);
    let devices = [device("cpu", DeviceClass::Cpu, None, None), soft("opencl:0"), soft("opencl:1"), soft("wgpu:0")];
    let all = rows(&devices, &Backend::ALL, &[], &Machine::default());
    assert_eq!(ids(&all), ["cpu opencl:0 opencl:1 wgpu:0"]);
    assert_eq!(
        (all[0].class, all[0].matched_by.as_str(), all[0].minimum.met.as_str()),
        (DeviceClass::Cpu, "processor", "host")
    );
    assert_eq!(all[0].name, "name of cpu");
    assert!(all[0].not_seen_by.is_empty() && all[0].notes.is_empty(), "{all:?}");
}

#[test]
fn one_card_through_three_apis_is_one_row() {
    let pci = Some("0000:3b:00.0");
    let devices = [
        device("cpu", DeviceClass::Cpu, None, None),
        device("cuda:0", DeviceClass::Discrete, Some(UUID), pci),
        device("cuda:1", DeviceClass::Discrete, Some("ffff00112233445566778899aabbccdd"), Some("0000:5e:00.0")),
        device("opencl:0", DeviceClass::Discrete, None, Some("0000:5e:00.0")),
        device("opencl:1", DeviceClass::Discrete, Some(UUID), None),
        device("wgpu:0", DeviceClass::Virtual, None, pci),
    ];
    let all = rows(&devices, &Backend::ALL, &[], &Machine::default());
    assert_eq!(ids(&all), ["cpu", "cuda:0 opencl:1 wgpu:0", "cuda:1 opencl:0"]);
    assert_eq!((all[1].uuid.as_deref(), all[1].pci.as_deref(), all[1].class), (Some(UUID), pci, DeviceClass::Discrete));
    assert_eq!((all[0].matched_by.as_str(), all[2].matched_by.as_str()), ("alone", "pci"));
    // The second card has no Vulkan device, and it is said how to get one.
    assert_eq!(all[2].not_seen_by.iter().map(|n| n.what.as_str()).collect::<Vec<_>>(), ["wgpu"]);
    assert!(all[1].not_seen_by.is_empty());
}

/// A container's Vulkan driver may tell no address, and CUDA and OpenCL tell both or one: the UUID is what all three share.
#[test]
fn one_card_is_known_by_its_uuid_through_cuda_opencl_and_vulkan() {
    let other = "ffff00112233445566778899aabbccdd";
    let devices = [
        device("cuda:0", DeviceClass::Discrete, Some(UUID), Some("0000:3b:00.0")),
        device("cuda:1", DeviceClass::Discrete, Some(other), Some("0000:5e:00.0")),
        device("opencl:0", DeviceClass::Discrete, Some(other), None),
        device("opencl:1", DeviceClass::Discrete, Some(UUID), None),
        device("wgpu:0", DeviceClass::Discrete, Some(UUID), None),
        device("wgpu:1", DeviceClass::Virtual, Some(other), None),
    ];
    let all = rows(&devices, &Backend::ALL, &[], &Machine::default());
    assert_eq!(ids(&all), ["cuda:0 opencl:1 wgpu:0", "cuda:1 opencl:0 wgpu:1"]);
    assert!(all.iter().all(|r| r.matched_by == "uuid" && r.not_seen_by.is_empty()), "{all:?}");
    // The order of the APIs decides nothing but the order of the ids.
    let mut turned = devices.to_vec();
    turned.reverse();
    let turned = rows(&turned, &Backend::ALL, &[], &Machine::default());
    assert_eq!(ids(&turned), ["wgpu:1 opencl:0 cuda:1", "wgpu:0 opencl:1 cuda:0"]);
}

/// Some drivers make UUIDs of a model's numbers.
#[test]
fn two_cards_that_share_a_uuid_are_two_by_their_addresses() {
    let card = |id, pci| device(id, DeviceClass::Discrete, Some(UUID), Some(pci));
    let devices = [
        card("opencl:0", "0000:3b:00.0"),
        card("opencl:1", "0000:5e:00.0"),
        card("wgpu:0", "0000:5e:00.0"),
        card("wgpu:1", "0000:3b:00.0"),
    ];
    assert_eq!(ids(&rows(&devices, &Backend::ALL, &[], &Machine::default())), ["opencl:0 wgpu:1", "opencl:1 wgpu:0"]);
}

/// Lavapipe has a UUID as a card has one.
#[test]
fn a_uuid_makes_no_card_of_the_processor() {
    let devices = [
        device("cpu", DeviceClass::Cpu, None, None),
        device("cuda:0", DeviceClass::Discrete, Some(UUID), None),
        device("opencl:0", DeviceClass::Software, None, None),
        device("wgpu:0", DeviceClass::Software, Some(UUID), None),
    ];
    let all = rows(&devices, &Backend::ALL, &[], &Machine::default());
    assert_eq!(ids(&all), ["cpu opencl:0 wgpu:0", "cuda:0"]);
    assert_eq!((all[0].uuid.as_deref(), all[0].matched_by.as_str()), (None, "processor"));
    assert_eq!(all[1].uuid.as_deref(), Some(UUID));
}

#[test]
fn a_device_that_tells_both_joins_what_was_apart() {
    let pci = Some("0000:3b:00.0");
    let devices = [
        device("opencl:0", DeviceClass::Discrete, Some(UUID), None),
        device("wgpu:0", DeviceClass::Discrete, None, pci),
        device("opencl:1", DeviceClass::Discrete, Some(UUID), pci),
    ];
    let all = rows(&devices, &Backend::ALL, &[], &Machine::default());
    assert_eq!(ids(&all), ["opencl:0 wgpu:0 opencl:1"]);
    assert!(all[0].notes.iter().any(|n| n.contains("several drivers of opencl")), "{:?}", all[0].notes);
}

#[test]
fn what_tells_nothing_stays_alone() {
    let devices = [
        device("wgpu:0", DeviceClass::Discrete, None, None),
        device("wgpu:1", DeviceClass::Discrete, None, None),
        device("opencl:0", DeviceClass::Discrete, None, None),
    ];
    assert_eq!(ids(&rows(&devices, &Backend::ALL, &[], &Machine::default())), ["wgpu:0", "wgpu:1", "opencl:0"]);
}

#[test]
fn parts_of_a_divided_card_are_one_card() {
    let pci = Some("0000:3b:00.0");
    let card = Snapshot { pci: pci.map(Into::into), uid: "GPU-x".into(), mig: Some(true), ..Snapshot::default() };
    let devices = [
        device("cuda:0", DeviceClass::Discrete, Some(UUID), pci),
        device("cuda:1", DeviceClass::Discrete, Some("ffff00112233445566778899aabbccdd"), pci),
    ];
    let all = rows(&devices, &Backend::ALL, &[card], &Machine::default());
    assert_eq!((ids(&all), all[0].mig), (vec!["cuda:0 cuda:1".to_string()], Some(true)));
    assert!(all[0].notes[0].contains("MIG"));
}

#[test]
fn telemetry_tells_of_the_card_that_it_saw() {
    let uid = "GPU-6d6f0011-2233-4455-6677-8899aabbccdd";
    assert_eq!(hex(uid).as_deref(), Some(UUID));
    let card = Snapshot {
        uid: uid.into(),
        memory_total: Some(8 << 30),
        memory_used: Some(1 << 30),
        link: Link { card_generation: Some(5), ..Link::default() },
        numa_node: Some(1),
        ..Snapshot::default()
    };
    let devices = [device("cuda:0", DeviceClass::Discrete, Some(UUID), None)];
    let all = rows(&devices, &Backend::ALL, &[card], &Machine::default());
    assert_eq!(all.len(), 1, "nothing twice");
    assert_eq!((all[0].memory_free, all[0].numa_node), (Some(7 << 30), Some(1)));
    assert_eq!(all[0].link.unwrap().card_generation, Some(5));
    let none = rows(&devices, &Backend::ALL, &[], &Machine::default());
    assert_eq!((none[0].memory_free, none[0].memory_free_why.as_str()), (None, "NVML did not tell"));
}

#[test]
fn a_card_without_an_api_is_a_row_with_the_reason() {
    let listed = |pci: &str, vendor, driver: Option<&str>| PciCard {
        pci: pci.into(),
        vendor,
        device: 0x2335,
        driver: driver.map(Into::into),
        ..PciCard::default()
    };
    let machine = Machine {
        cards: vec![
            listed("0000:01:00.0", 0x10de, None),
            listed("0000:02:00.0", 0x1002, Some("vfio-pci")),
            listed("0000:03:00.0", 0x10de, Some("nouveau")),
            listed("0000:3b:00.0", 0x10de, Some("nvidia")),
        ],
        nodes: Vec::new(),
    };
    let devices = [device("cuda:0", DeviceClass::Discrete, Some(UUID), Some("0000:3b:00.0"))];
    let all = rows(&devices, &Backend::ALL, &[], &machine);
    assert_eq!(ids(&all), ["cuda:0", "", "", ""]);
    assert_eq!(all[0].kernel_driver.as_deref(), Some("nvidia"));
    assert_eq!(all[1].name, "NVIDIA card 10de:2335");
    for (row, words) in all[1..].iter().zip(["no driver of the kernel", "virtual machine", "nouveau"]) {
        assert!(row.notes[0].contains(words), "{row:?}");
    }
    // CUDA is not expected of AMD's.
    assert_eq!(all[2].not_seen_by.len(), 2);
    assert_eq!(all[1].not_seen_by.len(), 3);
    // Who asks one API alone learns nothing of what the others would show.
    let alone = rows(&devices, &[Backend::Cuda], &[], &machine);
    assert_eq!((ids(&alone), alone[0].not_seen_by.len()), (vec!["cuda:0".to_string()], 0));
    // What only NVML knows, in a container without the bus's list.
    let card = Snapshot { uid: "GPU-a".into(), name: "A card".into(), source: "nvml".into(), ..Snapshot::default() };
    let all = rows(&[], &Backend::ALL, &[card], &Machine::default());
    assert_eq!((all[0].name.as_str(), all[0].ids.len(), all[0].not_seen_by.len()), ("A card", 0, 3));
}

#[test]
fn the_best_api_decides_about_the_minimum() {
    let pci = Some("0000:3b:00.0");
    let vulkan = DeviceInfo { memory_bytes: None, ..device("wgpu:0", DeviceClass::Discrete, None, pci) };
    let opencl = device("opencl:0", DeviceClass::Discrete, None, pci);
    let old = DeviceInfo { memory_bytes: Some(1 << 30), ..opencl.clone() };
    let met = |devices: &[DeviceInfo]| rows(devices, &Backend::ALL, &[], &Machine::default())[0].minimum.met.clone();
    assert_eq!(met(&[vulkan.clone(), opencl]), "yes");
    assert_eq!(met(std::slice::from_ref(&vulkan)), "unknown");
    assert_eq!(met(&[old]), "no");
}

#[test]
fn paths_between_cards_are_told_apart() {
    let at = |pci: &str, root: &str, bridges: &[&str], node| PciCard {
        pci: pci.into(),
        root: root.into(),
        bridges: bridges.iter().map(|b| (*b).to_string()).collect(),
        numa_node: Some(node),
        ..PciCard::default()
    };
    let a = at("a", "pci0:1", &["port", "up", "down1"], 0);
    assert_eq!(bus_path(&a, &at("b", "pci0:1", &["port", "up", "down2"], 0)), "same switch");
    assert_eq!(bus_path(&a, &at("b", "pci0:1", &["port", "up2", "x", "down2"], 0)), "switches");
    assert_eq!(bus_path(&a, &at("b", "pci0:1", &["port2", "up", "down1"], 0)), "host bridge");
    assert_eq!(bus_path(&a, &at("b", "pci0:2", &[], 0)), "node");
    assert_eq!(bus_path(&a, &at("b", "pci0:3", &[], 1)), "system");
    assert_eq!(bus_path(&a, &PciCard::default()), "unknown");
}

#[test]
fn a_topology_has_every_pair_with_links_and_peers() {
    let cuda = |id: &str, pci: &str, peers: &[&str]| {
        let mut d = device(id, DeviceClass::Discrete, None, Some(pci));
        d.facts.peers = peers.iter().map(|p| (*p).to_string()).collect();
        d
    };
    let devices = [
        device("cpu", DeviceClass::Cpu, None, None),
        cuda("cuda:0", "0000:01:00.0", &["cuda:1"]),
        cuda("cuda:1", "0000:02:00.0", &["cuda:0"]),
        cuda("cuda:2", "0000:03:00.0", &["cuda:0"]),
    ];
    let card = |pci: &str, links: &[&str]| Snapshot {
        pci: Some(pci.into()),
        nvlinks: Some(links.iter().map(|l| (*l).to_string()).collect()),
        numa_node: Some(1),
        ..Snapshot::default()
    };
    // The first two hang at a switch; the third has a link to the first, and one whose end is not told.
    let cards = [
        card("0000:01:00.0", &["switch", "switch", "0000:03:00.0"]),
        card("0000:02:00.0", &["switch", "switch"]),
        card("0000:03:00.0", &["0000:01:00.0", "unknown"]),
    ];
    let machine =
        Machine { cards: vec![], nodes: vec![NumaNode { node: 1, cpus: "4-7".into(), ..NumaNode::default() }] };
    let rows = rows(&devices, &Backend::ALL, &cards, &machine);
    let t = topology(&rows, &devices, &cards, machine);
    assert_eq!(t.cards.len(), 3);
    assert_eq!((t.cards[0].numa_node, t.cards[0].cpus.as_deref()), (Some(1), Some("4-7")));
    let seen: Vec<_> = t.pairs.iter().map(|p| (p.path.as_str(), p.nvlinks, p.peers)).collect();
    assert_eq!(
        seen,
        [("nvlink", Some(2), Some(true)), ("nvlink", Some(1), Some(false)), ("unknown", Some(0), Some(false))]
    );
}
