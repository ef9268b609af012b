//! Plans of one algorithm on several datapaths, times many: too many contenders for one chart, so that each algorithm gets its
//! own, and comparisons become a [matrix](super::matrix).

use ccplane_results::{Contender, Datapath};

/// The most contenders that can be told apart in one chart.
const CROWD: usize = 8;

/// One algorithm on several datapaths.
pub struct Family {
    /// The common part of its contenders' names.
    pub name: String,
    /// Indices of contenders, in the plan's order.
    pub members: Vec<usize>,
}

/// The families, if all contenders are in one and they are too many for one chart; else none.
pub fn families(contenders: &[Contender]) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for (index, contender) in contenders.iter().enumerate() {
        match families.iter_mut().find(|f| contenders[f.members[0]].is_same_algorithm(contender)) {
            Some(family) => family.members.push(index),
            None => families.push(Family { name: name(contender), members: vec![index] }),
        }
    }
    let ours = contenders.iter().all(|c| c.datapath != Datapath::Kernel);
    if contenders.len() > CROWD && ours && families.iter().all(|f| f.members.len() > 1) {
        families
    } else {
        Vec::new()
    }
}

fn name(contender: &Contender) -> String {
    let datapath = contender.name.strip_suffix(contender.datapath.name());
    datapath.map(str::trim_end).filter(|n| !n.is_empty()).unwrap_or(&contender.name).to_owned()
}

/// Datapaths in the order in which contenders name them: the index of each contender's.
pub fn datapaths(contenders: &[Contender]) -> Vec<usize> {
    let mut seen: Vec<Datapath> = Vec::new();
    let index = |contender: &Contender| {
        seen.iter().position(|d| *d == contender.datapath).unwrap_or_else(|| {
            seen.push(contender.datapath);
            seen.len() - 1
        })
    };
    contenders.iter().map(index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contenders(datapaths: &[Datapath]) -> Vec<Contender> {
        let each = |algorithm: &str| {
            let one = |datapath: &Datapath| Contender {
                name: format!("{algorithm} {}", datapath.name()),
                algorithm: algorithm.into(),
                datapath: *datapath,
                parameters: Default::default(),
                learning: false,
            };
            datapaths.iter().map(one).collect::<Vec<_>>()
        };
        ["reno", "cubic", "bbr"].into_iter().flat_map(each).collect()
    }

    #[test]
    fn a_crowd_falls_into_families_if_all_of_it_does() {
        let three = [Datapath::Ebpf, Datapath::Quic, Datapath::Sim];
        let crowd = contenders(&three);
        let found = families(&crowd);
        let members: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.members.clone())).collect();
        assert_eq!(members, [("reno", vec![0, 1, 2]), ("cubic", vec![3, 4, 5]), ("bbr", vec![6, 7, 8])]);
        assert_eq!(datapaths(&crowd), [0, 1, 2, 0, 1, 2, 0, 1, 2]);
        assert!(families(&contenders(&three[..2])).is_empty(), "six can be told apart");
        let mut odd = crowd.clone();
        odd[3].algorithm = "copa".into();
        assert!(families(&odd).is_empty(), "copa is alone");
        let mut kernel = crowd;
        kernel[3].datapath = Datapath::Kernel;
        assert!(families(&kernel).is_empty(), "the kernel's own is another implementation");
    }
}
