mod client;
mod handshakes;
mod hostile;
mod transmissions;
