"""Access to guests from afar: sessions that SBF relays to the guests of this host."""
