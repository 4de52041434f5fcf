"""What goes wrong, and when: faults as values, and the one who carries them out."""
