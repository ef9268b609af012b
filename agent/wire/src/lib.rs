//! Messages between agent and datapaths: CCP v1 and ccplane v2
