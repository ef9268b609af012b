//! What datapaths in user space have in common: programs on flows, slots, the agent's commands.
