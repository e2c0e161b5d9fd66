"""What people bring from elsewhere: converters and models written for other compilers run here."""
