"""The transaction coordinator: who may write under a transactional id, and whether it counts."""
