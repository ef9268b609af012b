#[test]
fn shipped_plans_parse() {}
