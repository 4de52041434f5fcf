"""Bytes to messages and back, without I/O. Wire versions end here; nothing else imports kio."""
