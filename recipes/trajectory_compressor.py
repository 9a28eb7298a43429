"""The script trajectory_compressor.py of hermes-agent: it runs `hermes compress`; --help lists the flags."""

from hermes.cli.older import trajectory_compressor

if __name__ == "__main__":
    trajectory_compressor()
