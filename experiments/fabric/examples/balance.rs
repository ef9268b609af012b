use ccplane_fabric::{BalancePlan, BalancingConfig, balance_csv, balance_text, learn_paths, play_balance};
fn main() {
    let words: Vec<String> = std::env::args().collect();
    match words[1].as_str() {
        "train" => {
            let mut config = BalancingConfig::default();
            config.flows = words[3].parse().unwrap();
            config.rounds = words[4].parse().unwrap();
            let learned =
                learn_paths(&config, "ccplane train --algorithm path --seed 1", &|t| eprintln!("{t}"))
                    .unwrap();
            learned.policy.write(&std::path::Path::new(&words[2]).join("path.safetensors")).unwrap();
            std::fs::write(
                std::path::Path::new(&words[2]).join("path.snapshot"),
                learned.snapshot.to_bytes(),
            )
            .unwrap();
            eprintln!("{} examples, {:?}", learned.examples, learned.snapshot.fidelity());
        }
        _ => {
            let text = std::fs::read_to_string(&words[2]).unwrap();
            let plan = BalancePlan::parse(words[2].as_ref(), &text, words.get(4).map(|r| r.parse().unwrap()))
                .unwrap();
            let cells = play_balance(&plan, 2, &|t| {
                eprintln!("{t}");
                true
            })
            .unwrap()
            .unwrap();
            std::fs::write(&words[3], balance_csv(&plan, &cells)).unwrap();
            println!("{}", balance_text(&plan, &cells));
        }
    }
}
