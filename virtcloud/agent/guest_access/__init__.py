"""Remote access to guests: sessions that SBF relays from users to the guests of this host."""
