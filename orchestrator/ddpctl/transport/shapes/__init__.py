"""What a worker may say, subject by subject: plain declarations, checked in answers.py."""
