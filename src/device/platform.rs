//! OpenCL's platforms in an order that no loader, folder or file name decides: what a platform says of itself does. So ids
//! and uids stay the same however drivers are listed. Pure; the answers come from `opencl::probe`, or from several processes
//! that asked one driver each.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// What is known of one platform. The order of the fields is the order in which platforms are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Platform {
    /// True if it has the host's processor only, or nothing: platforms with GPUs come first.
    pub software: bool,
    /// Its name.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// Its version of OpenCL, in its own words.
    pub version: String,
    /// Its devices in the driver's order, those that cannot be used included.
    pub devices: Vec<Seen>,
    /// The file of the driver's library without symbolic links, where the system tells. Copies of one library differ in
    /// nothing else.
    pub file: Option<String>,
}

/// What is known of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// The hardware's own identity (`pci/...` or `uuid/...`), if it has one.
    pub hardware: Option<String>,
}

/// Where a platform stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its index in what was given.
    pub platform: usize,
    /// The number of its first device; the others follow.
    pub first: usize,
    /// The uids of its devices, in the driver's order.
    pub uids: Vec<String>,
}

/// Numbers all devices: platforms in their order, every device counts.
///
/// A uid is the hardware's identity, else the platform and the device's index there. Platforms of one name have the driver's
/// version in it, too; only those that are the same in every word are counted. Devices behind one hardware identity (a card
/// with two drivers, a part of a card) have the platform and the index after it. Every uid is given once.
pub fn places(platforms: &[Platform]) -> Vec<Place> {
    let mut order: Vec<usize> = (0..platforms.len()).collect();
    order.sort_by_key(|i| &platforms[*i]);
    let labels = labels(&order.iter().map(|i| &platforms[*i]).collect::<Vec<_>>());
    let mut cards: HashMap<&str, usize> = HashMap::new();
    for card in platforms.iter().flat_map(|p| &p.devices).filter_map(|d| d.hardware.as_deref()) {
        *cards.entry(card).or_default() += 1;
    }
    let mut first = 0;
    let mut all = Vec::new();
    for (i, label) in order.into_iter().zip(labels) {
        let uid = |(index, device): (usize, &Seen)| match device.hardware.as_deref() {
            Some(card) if cards[card] == 1 => format!("opencl/{card}"),
            Some(card) => format!("opencl/{card}/{label}/{index}"),
            None => format!("opencl/{label}/{index}"),
        };
        let uids: Vec<_> = platforms[i].devices.iter().enumerate().map(uid).collect();
        let count = uids.len();
        all.push(Place { platform: i, first, uids });
        first += count;
    }
    all
}

/// What uids call each of the platforms, which are in order. The number of parts tells the three forms apart.
fn labels(platforms: &[&Platform]) -> Vec<String> {
    let name = |p: &Platform| slug(&p.name);
    let exact = |p: &Platform| {
        let driver = p.devices.first().map_or("", |d| d.driver.as_str());
        format!("{}/{}", slug(&p.name), slug(if driver.is_empty() { &p.version } else { driver }))
    };
    let label = |(i, p): (usize, &&Platform)| {
        if platforms.iter().filter(|other| name(other) == name(p)).count() == 1 {
            return name(p);
        }
        let before = platforms[..i].iter().filter(|other| exact(other) == exact(p)).count();
        if before == 0 { exact(p) } else { format!("{}/{}", exact(p), before + 1) }
    };
    platforms.iter().enumerate().map(label).collect()
}

/// Lower case, everything but letters and digits as one dash.
fn slug(text: &str) -> String {
    let dashed: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect();
    dashed.split('-').filter(|s| !s.is_empty()).collect::<Vec<_>>().join("-")
}

/// Which of the platforms that one loader lists are listed for the first time; each is given with the handles of itself and
/// of its devices. A loader lists a driver that two files name twice, with one handle. A loader that wraps platforms gives
/// two handles, but the devices behind them are the same.
pub fn once<P: PartialEq, D: PartialEq>(handles: &[(P, Vec<D>)]) -> Vec<bool> {
    let again = |(i, (platform, devices)): (usize, &(P, Vec<D>))| {
        handles[..i].iter().any(|(p, d)| p == platform || (!d.is_empty() && d == devices))
    };
    handles.iter().enumerate().map(|entry| !again(entry)).collect()
}

/// Whether two processes that asked one driver each have asked the same one.
pub fn same_driver(a: &Platform, b: &Platform) -> bool {
    a.file.is_some() && a == b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, driver: &str, hardware: Option<&str>) -> Seen {
        Seen { name: name.into(), driver: driver.into(), hardware: hardware.map(Into::into) }
    }

    fn platform(name: &str, devices: &[Seen], file: &str) -> Platform {
        let version = format!("OpenCL 3.0 {name}");
        let (vendor, file) = ("Maker".into(), Some(file.into()));
        let software = devices.iter().all(|d| d.name == "cpu");
        Platform { software, name: name.into(), vendor, version, devices: devices.to_vec(), file }
    }

    /// Every order of some platforms gives each of them the same place.
    fn settled(platforms: &[Platform]) -> Vec<(String, usize, Vec<String>)> {
        fn orders(count: usize) -> Vec<Vec<usize>> {
            if count == 0 {
                return vec![vec![]];
            }
            let shorter = orders(count - 1);
            let at = |o: &Vec<usize>, i: usize| [&o[..i], &[count - 1], &o[i..]].concat();
            shorter.iter().flat_map(|o| (0..count).map(|i| at(o, i)).collect::<Vec<_>>()).collect()
        }
        let of = |order: &[usize]| {
            let shuffled: Vec<_> = order.iter().map(|i| platforms[*i].clone()).collect();
            let file = |p: usize| shuffled[p].file.clone().unwrap_or_default();
            places(&shuffled).into_iter().map(|p| (file(p.platform), p.first, p.uids)).collect::<Vec<_>>()
        };
        let all: Vec<_> = orders(platforms.len()).iter().map(|o| of(o)).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        let mut uids: Vec<_> = all[0].iter().flat_map(|(.., uids)| uids).collect();
        let count = uids.len();
        uids.sort_unstable();
        uids.dedup();
        assert_eq!(uids.len(), count, "{uids:?}");
        all[0].clone()
    }

    #[test]
    fn places_do_not_depend_on_the_order_of_listing() {
        let two = [seen("cpu", "3.1+debian", None), seen("cpu", "3.1+debian", None)];
        let card = [seen("Old Card", "1.0", Some("pci/0000:01:00.0"))];
        let all = settled(&[
            platform("Portable Computing Language", &two, "/p"),
            platform("Old Platform", &card, "/o"),
            platform("Intel(R) OpenCL", &[seen("cpu", "2026", None)], "/i"),
            platform("Empty", &[], "/e"),
        ]);
        let texts: Vec<_> =
            all.iter().map(|(file, first, uids)| format!("{file} {first} {}", uids.join(" "))).collect();
        assert_eq!(
            texts,
            [
                "/o 0 opencl/pci/0000:01:00.0",
                "/e 1 ",
                "/i 1 opencl/intel-r-opencl/0",
                "/p 2 opencl/portable-computing-language/0 opencl/portable-computing-language/1",
            ]
        );
    }

    #[test]
    fn platforms_of_one_name_are_told_apart() {
        let pocl = |driver: &str, file: &str| platform("PoCL", &[seen("cpu", driver, None)], file);
        let all = settled(&[pocl("3.1-2", "/c"), pocl("3.1", "/b"), pocl("3.1", "/a"), pocl("6.0", "/d")]);
        let uids: Vec<_> = all.iter().map(|(file, _, uids)| format!("{file} {}", uids[0])).collect();
        assert_eq!(
            uids,
            ["/a opencl/pocl/3-1/0", "/b opencl/pocl/3-1/2/0", "/c opencl/pocl/3-1-2/0", "/d opencl/pocl/6-0/0"]
        );
    }

    /// A card with two drivers, and parts of a card that share its address.
    #[test]
    fn one_card_behind_several_devices_is_told_apart() {
        let card = Some("pci/0000:01:00.0");
        let all = settled(&[
            platform("B", &[seen("gpu", "1", card), seen("gpu", "1", Some("pci/0000:02:00.0"))], "/b"),
            platform("A", &[seen("gpu", "1", card), seen("gpu", "1", card)], "/a"),
        ]);
        assert_eq!(all[0].2, ["opencl/pci/0000:01:00.0/a/0", "opencl/pci/0000:01:00.0/a/1"]);
        assert_eq!(all[1].2, ["opencl/pci/0000:01:00.0/b/0", "opencl/pci/0000:02:00.0"]);
    }

    #[test]
    fn what_is_listed_twice_counts_once() {
        // By the platform's handle, by the devices' handles; platforms without devices have only their own.
        let handles = [(1, vec![10]), (1, vec![10]), (2, vec![10]), (3, vec![]), (4, vec![]), (5, vec![11])];
        assert_eq!(once(&handles), [true, false, false, true, true, true]);
        let a = platform("PoCL", &[], "/a");
        assert!(same_driver(&a, &a.clone()));
        assert!(!same_driver(&a, &platform("PoCL", &[], "/b")), "a copy is a driver of its own");
        let untold = Platform { file: None, ..a };
        assert!(!same_driver(&untold, &untold.clone()), "nothing says that they are one");
    }

    #[test]
    fn names_become_parts_of_uids() {
        assert_eq!(slug("Portable Computing Language"), "portable-computing-language");
        assert_eq!(slug("Intel(R) OpenCL"), "intel-r-opencl");
    }
}
