"""The transaction coordinator: it decides which producer may write under a transactional id, and the
outcome."""
