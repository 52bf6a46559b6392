"""What runs leave for people: tables, figures and one self-contained page."""
