//! mahimahi-compatible link shells over TUN
