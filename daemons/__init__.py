"""The long-running programs (tracker, node, relay) and the kit they share. Siblings never import each other."""
