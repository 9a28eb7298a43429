"""The reference's script launch_training.py: it runs `hermes train grpo --with-engine`; see --help."""

from hermes.launch_training import main

if __name__ == "__main__":
    main()
