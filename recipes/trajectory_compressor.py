"""The reference's script trajectory_compressor.py: it runs `hermes compress`; --help lists the flags."""

from hermes.trajectory_compressor import main

if __name__ == "__main__":
    main()
