//! Sans-IO agent: flow table, algorithm rules, decisions
