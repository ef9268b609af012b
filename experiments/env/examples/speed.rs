//! Steps per second of one Aurora flow.
use ccplane_env::*;
use ccplane_learn::{Actor, End, Environment};
use std::sync::Arc;
struct Still(usize, f64, f64);
impl Actor for Still {
    fn act(&mut self, _: usize, o: &[f32]) -> f32 {
        self.0 += 1;
        let ratio = o[28] * 0.3 + 0.3;
        if ratio > 0.05 { -1.0 } else { 0.5 }
    }
    fn outcome(&mut self, _: usize, reward: f32, _: End, _: &[f32]) {
        self.1 += f64::from(reward);
        self.2 += 1.0;
    }
}
fn main() {
    for published in [true, false] {
        let config = if published { ccplane_algs::AuroraConfig::published() } else { Default::default() };
        let family =
            if published { Family::Published(Default::default()) } else { Family::Real(Default::default()) };
        let alg = Arc::new(ccplane_algs::Aurora { config });
        let mut env = Links::new(
            alg,
            Some(Arc::new(ccplane_algs::Cubic::default())),
            family,
            spec::aurora(spec::Steps::REAL).unwrap(),
        )
        .unwrap();
        let mut actor = Still(0, 0.0, 0.0);
        let t = std::time::Instant::now();
        for seed in 0..100 {
            env.episode(seed, 400, &mut actor);
        }
        println!(
            "{published}: {} steps, {:.0} a second, reward {:.3}",
            actor.0,
            actor.0 as f64 / t.elapsed().as_secs_f64(),
            actor.1 / actor.2
        );
    }
}
